"""What people ask for, and what became of it: two files for each backfill.

The order is written by whoever asks, the record by the engine, so neither overwrites the other.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import structlog

from tailrace.log.store import LocalStore
from tailrace.observe.figures import BackfillFigures
from tailrace.postgres.publication import TableName

if TYPE_CHECKING:
    from pathlib import Path

_ORDER = ".order.json"
_RECORD = ".record.json"

Wish = Literal["run", "pause", "cancel"]
OVER = frozenset({"complete", "cancelled", "failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A backfill as it was asked for."""

    id: str
    table: TableName
    where: str = ""
    """SQL for PostgreSQL; empty: all rows."""
    rate: float = 0.0
    """Rows a second, at most; 0: as quick as it goes."""
    wish: Wish = "run"
    reason: str = ""
    asked_at: float = field(default_factory=time.time)

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        LocalStore(folder, create=True).write_atomic(self.id + _ORDER, _dumped(self))

    @classmethod
    def load(cls, folder: Path) -> list[Self]:
        """All orders, oldest first."""
        found = [cls(**fields) for fields in _loaded(folder, _ORDER)]
        return sorted(found, key=lambda order: (order.asked_at, order.id))


@dataclass(slots=True, kw_only=True)
class Record:
    """A backfill on its way, or over."""

    id: str
    table: TableName
    state: str = "queued"
    key: tuple[str, ...] = ()
    cursor: tuple[str, ...] = ()
    """The key of the last row that was read."""
    number: int = 0
    """The last chunk."""
    read: int = 0
    delivered: int = 0
    bytes: int = 0
    expected: int = 0
    """About how many rows there are."""
    page_rows: int = 0
    whole: bool = False
    """Whether everything is read."""
    error: str = ""
    begun_at: float = 0.0
    ended_at: float = 0.0

    def progress(self, pipeline: str) -> BackfillFigures:
        """The status figures of this backfill."""
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
            seconds=(self.ended_at or time.time()) - self.begun_at if self.begun_at else 0.0,
            error=self.error,
        )

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        LocalStore(folder, create=True).write_atomic(self.id + _RECORD, _dumped(self))

    @classmethod
    def load(cls, folder: Path) -> dict[str, Self]:
        """All records, by id."""
        return {
            fields["id"]: cls(
                **fields | {"key": tuple(fields["key"]), "cursor": tuple(fields["cursor"])}
            )
            for fields in _loaded(folder, _RECORD)
        }


def _dumped(value: Order | Record) -> bytes:
    return json.dumps(asdict(value)).encode()


def _loaded(folder: Path, ending: str) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob(f"*{ending}")):
        try:
            fields = json.loads(path.read_text())
            found.append(fields | {"table": TableName(**fields["table"])})
        except FileNotFoundError:
            continue
        except (ValueError, TypeError, KeyError) as error:
            structlog.get_logger().warning("backfill.unreadable", file=str(path), reason=str(error))
    return found
