"""Partitions of a table by time: created ahead of the rows, dropped once they are old.

A partition is created as a table of its own and then attached: that needs no lock that readers or
writers of the parent hold. This happens over a connection of its own, so that the lock ends at
once and not with the transaction of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import numpy as np
import structlog

from tailrace.errors import SinkUnreachableError
from tailrace.postgres.names import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tailrace.sinks.postgres.session import Session

    Unit = Literal["hour", "day", "month"]

_CODES = {"hour": "h", "day": "D", "month": "M"}
_FORMATS = {"hour": "%Y%m%d%H", "day": "%Y%m%d", "month": "%Y%m"}
_NAME_BYTES = 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOUNDS = r"""
SELECT n.nspname, c.relname, b.bound = 'DEFAULT',
    extract(epoch FROM (regexp_match(b.bound, 'FROM \(''([^'']*)''\)'))[1]::timestamptz) * 1000000,
    extract(epoch FROM (regexp_match(b.bound, 'TO \(''([^'']*)''\)'))[1]::timestamptz) * 1000000
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bound) b
WHERE i.inhparent = %s::regclass AND b.bound IS NOT NULL
"""
_INFINITE = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition that exists. Its bounds are microseconds since 1970; the end is exclusive."""

    table: TableName
    start: int
    end: int


def read(session: Session, parent: TableName) -> list[Partition]:
    """The partitions of a table. The default partition covers all times."""
    return [
        Partition(
            table=TableName(namespace, name),
            start=-_INFINITE if default or start is None else int(start),
            end=_INFINITE if default or end is None else int(end),
        )
        for namespace, name, default, start, end in session.run(_BOUNDS, [parent.quoted])
    ]


class Periods:
    """The periods of time that have a partition."""

    def __init__(self, parent: TableName, unit: Unit) -> None:
        self._parent = parent
        self._unit = unit
        self._covered: set[int] = set()
        """By number: hours, days or months since 1970."""

    def numbers(self, micros: NDArray[np.int64]) -> set[int]:
        """The periods of some times.

        >>> Periods(TableName("public", "e"), "day").numbers(np.array([0, 1, 86_400_000_000]))
        {0, 1}
        """
        times = micros.astype("datetime64[us]").astype(f"datetime64[{_CODES[self._unit]}]")
        return set(np.unique(times.astype(np.int64)).tolist())

    def missing(self, micros: NDArray[np.int64]) -> set[int]:
        """The periods of some times that are not known to have a partition."""
        return self.numbers(micros) - self._covered

    def around(self, now_us: int) -> set[int]:
        """The present period and the next one, as far as they have no partition."""
        present = min(self.numbers(np.array([now_us], np.int64)))
        return {present, present + 1} - self._covered

    def create(self, session: Session, numbers: Iterable[int]) -> None:
        """Create the partitions that these periods need."""
        wanted = sorted(numbers)
        with session.transaction():
            # Lanes create partitions at the same time.
            session.run("SELECT pg_advisory_xact_lock(hashtext(%s))", [self._parent.quoted])
            existing = read(session, self._parent)
            for number in wanted:
                start, end = self._bounds(number)
                if not any(each.start <= start and end <= each.end for each in existing):
                    self._create(session, number)
        self._covered.update(wanted)

    def _create(self, session: Session, number: int) -> None:
        start, end = (_EPOCH + timedelta(microseconds=each) for each in self._bounds(number))
        suffix = start.strftime(f"_p{_FORMATS[self._unit]}")
        name = TableName(self._parent.namespace, _shortened(self._parent.name, suffix))
        parent = self._parent.quoted
        session.run(f"CREATE TABLE {name.quoted} (LIKE {parent} INCLUDING ALL)")
        session.run(
            f"ALTER TABLE {parent} ATTACH PARTITION {name.quoted}"
            f" FOR VALUES FROM ('{start:%Y-%m-%d %H:%M:%S}+00') TO ('{end:%Y-%m-%d %H:%M:%S}+00')"
        )
        structlog.get_logger().info("postgres.partition_created", table=str(name))

    def _bounds(self, number: int) -> tuple[int, int]:
        """The start of a period and that of the next one, in microseconds since 1970."""
        starts = np.array([number, number + 1]).astype(f"datetime64[{_CODES[self._unit]}]")
        start, end = starts.astype("datetime64[us]").astype(np.int64).tolist()
        return start, end


def drop_old(session: Session, parent: TableName, *, now_us: int, keep: timedelta) -> None:
    """Drop the partitions whose last moment is longer ago than `keep`.

    A partition that is in use is dropped the next time: DROP TABLE waits for its readers, and all
    later readers and writers of the parent wait for DROP TABLE.
    """
    oldest = now_us - int(keep.total_seconds() * 1_000_000)
    session.run("SET lock_timeout TO '2s'")
    for each in read(session, parent):
        if each.end > oldest:
            continue
        try:
            session.run(f"DROP TABLE {each.table.quoted}")
        except SinkUnreachableError as error:
            structlog.get_logger().info(
                "postgres.partition_in_use", table=str(each.table), reason=str(error)
            )
            return
        structlog.get_logger().info("postgres.partition_dropped", table=str(each.table))


def _shortened(name: str, suffix: str) -> str:
    """A name of at most 63 bytes, as PostgreSQL allows."""
    room = _NAME_BYTES - len(suffix)
    return name.encode()[:room].decode("utf-8", "ignore") + suffix


def partition_key(session: Session, table: TableName) -> str:
    """What a table is partitioned by, as SQL; empty if it is not partitioned."""
    row = session.run("SELECT pg_get_partkeydef(%s::regclass)", [table.quoted]).fetchone()
    return str(row[0]) if row is not None and row[0] else ""
