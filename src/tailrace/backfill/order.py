"""A backfill on disk: what was requested, and how far it is. Two files per backfill.

Commands and the HTTP API write the order, the backfill service writes the record. Each file has one
writer, so neither overwrites the other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeVar

import structlog
from pydantic import AliasChoices, Field

from tailrace.errors import CorruptError
from tailrace.observe.copies import BackfillFigures
from tailrace.postgres.names import TableName  # noqa: TC001 - pydantic reads the annotations
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.backfill.page import PageSnapshot

_ORDER = ".order.json"
_RECORD = ".record.json"

DesiredState = Literal["run", "pause", "cancel"]
FINISHED = frozenset({"complete", "cancelled", "failed"})
"""The states in which a backfill stays."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A backfill as it was requested."""

    id: str
    table: TableName
    where: str = ""
    """A condition as the operator wrote it (`tailrace.postgres.condition`); empty: all rows."""
    rate: float = 0.0
    """Rows per second, at most; 0 means no limit."""
    desired_state: Annotated[
        DesiredState, Field(validation_alias=AliasChoices("desired_state", "wish"))
    ] = "run"
    """What the operator asks for. Older files call it `wish`."""
    reason: str = ""
    asked_at: float = field(default_factory=time.time)

    def save(self, folder: Path) -> None:
        """Replace the file, durably."""
        StateFile(folder / f"{self.id}{_ORDER}", type(self)).write(self)

    @classmethod
    def load(cls, folder: Path) -> list[Self]:
        """All orders, oldest first. Invalid files are logged and skipped."""
        return sorted(_load(folder, _ORDER, cls), key=lambda order: (order.asked_at, order.id))


@dataclass(slots=True, kw_only=True)
class Record:
    """How far a backfill is, and how it ended."""

    id: str
    table: TableName
    state: str = "queued"
    """queued, running, paused or retrying; at the end one of FINISHED."""
    oid: int = 0
    """The table that was read. Another table may get its name."""
    key: tuple[str, ...] = ()
    cursor: tuple[str, ...] = ()
    """The key of the last row that was read."""
    number: int = 0
    """The number of the last page in the spool."""
    read: int = 0
    delivered: int = 0
    bytes: int = 0
    expected: int = 0
    """The planner's estimate of the number of rows."""
    page_rows: int = 0
    whole: bool = False
    """Whether the table has been read to its end."""
    error: str = ""
    begun_at: float = 0.0
    ended_at: float = 0.0

    def progress(self, pipeline: str, now: float) -> BackfillFigures:
        """The status figures of this backfill. `now` is in Unix seconds."""
        share = self.delivered / self.expected if self.expected else 0.0
        return BackfillFigures(
            pipeline=pipeline,
            id=self.id,
            table=str(self.table),
            state=self.state,
            rows=self.delivered,
            rows_read=self.read,
            rows_expected=self.expected,
            bytes=self.bytes,
            page_rows=self.page_rows,
            share=1.0 if self.state == "complete" else min(share, 0.99),
            seconds=max((self.ended_at or now) - self.begun_at, 0.0) if self.begun_at else 0.0,
            error=self.error,
        )

    def continues(self, snapshot: PageSnapshot) -> bool:
        """Whether a page of this snapshot may follow the pages that were read."""
        same_table = not self.oid or self.oid == snapshot.table.relation.oid
        return same_table and self.key == snapshot.key

    def restart(self) -> None:
        """Read the table from its first row again."""
        self.oid, self.key, self.cursor, self.read, self.whole = 0, (), (), 0, False

    def save(self, folder: Path) -> None:
        """Replace the file, durably."""
        StateFile(folder / f"{self.id}{_RECORD}", type(self)).write(self)

    @classmethod
    def load(cls, folder: Path) -> dict[str, Self]:
        """All records, by id. Invalid files are logged and skipped."""
        return {record.id: record for record in _load(folder, _RECORD, cls)}


def _load(folder: Path, suffix: str, kind: type[T]) -> Iterator[T]:
    for path in sorted(folder.glob(f"*{suffix}")):
        try:
            value = StateFile(path, kind).read()
        except CorruptError as error:
            structlog.get_logger().warning(
                "backfill.file_invalid", file=str(path), reason=str(error)
            )
            continue
        if value is not None:
            yield value
