"""Sinks into a database, messages for them, and what the database holds."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.message import GROUP, HEADERS, MESSAGES
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.postgres.settings import PostgresSink
from tailrace.sinks.postgres.sink import Postgres
from tests.unit.sinks.rows import position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt
    from tests.fix_postgres import Database


def messages(
    payloads: Iterable[object],
    *,
    start: int = 0,
    destination: str = "public.items",
    keys: Iterable[str | None] = (),
    committed_at: int = 0,
) -> pa.RecordBatch:
    """Messages with the numbers from `start` on; payloads that are not bytes become JSON."""
    bodies = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in payloads]
    count = len(bodies)
    places = [position(start + each) for each in range(count)]
    names = [*keys] or [str(start + each) for each in range(count)]
    columns = [
        pa.array([destination.encode()] * count, pa.binary()),
        pa.array([f"m{start + each}".encode() for each in range(count)], pa.binary()),
        pa.array([None if each is None else each.encode() for each in names], pa.binary()),
        pa.array(bodies, pa.binary()),
        pa.array([int(each.lsn) for each in places], pa.uint64()),
        pa.array([each.ordinal for each in places], pa.uint64()),
        pa.array([committed_at] * count, pa.int64()),
        pa.array([hash(destination) & 0xFFFF] * count, pa.uint64()),
        pa.array([None] * count, pa.binary()),
        pa.nulls(count, HEADERS),
        pa.nulls(count, GROUP),
    ]
    return pa.record_batch(columns, schema=MESSAGES)


def change(
    op: str,
    after: dict[str, Any] | None = None,
    *,
    before: dict[str, Any] | None = None,
    unchanged: Iterable[str] = (),
    key: Iterable[str] | None = ("id",),
) -> dict[str, Any]:
    """A payload of shape `plain`, as far as the sink reads it."""
    row = before if after is None else after
    named = None if key is None or row is None else {name: row[name] for name in key}
    return {
        "op": op, "key": named, "before": before, "after": after, "unchanged": list(unchanged),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bench:
    """A target database."""

    database: Database
    pipeline: str = "p"
    made: list[Postgres] = field(default_factory=list)

    def sink(
        self, *, lane: int = 0, lanes: int = 1, history: str = "one", **given: Any
    ) -> Postgres:
        defaults = {"type": "postgres", "dsn": self.database.dsn}
        settings = PostgresSink.model_validate(defaults | given)
        named = Lane(pipeline=self.pipeline, number=lane, lanes=lanes, history=history)
        sink = Postgres(settings, named)
        self.made.append(sink)
        return sink

    @contextlib.contextmanager
    def opened(self, after: Position = ORIGIN, **given: Any) -> Iterator[Postgres]:
        sink = self.sink(**given)
        sink.open(after)
        try:
            yield sink
        finally:
            sink.close()

    def ids(self) -> list[str]:
        """The ids of the events, by position."""
        statement = "SELECT id FROM wal_events ORDER BY commit_lsn, commit_idx"
        return [each for (each,) in self.database.query(statement)]

    def items(self) -> list[tuple[Any, ...]]:
        return self.database.query("SELECT * FROM items ORDER BY 1")


def numbered(numbers: Iterable[int]) -> list[str]:
    return [f"m{number}" for number in numbers]


def batch(numbers: range, *, keys: int = 0, committed_at: int = 0) -> pa.RecordBatch:
    """Messages whose payload is their number, with `keys` distinct keys."""
    return messages(
        ({"op": "insert", "n": number} for number in numbers),
        start=numbers.start,
        keys=[str(number % keys) for number in numbers] if keys else (),
        committed_at=committed_at,
    )


def delivered(sink: Postgres, rows: pa.RecordBatch) -> Receipt:
    """Write and flush."""
    assert sink.inspect(rows) == {}
    sink.write(rows)
    return sink.flush()
