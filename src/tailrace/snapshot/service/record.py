"""What is known of a snapshot on its way, in a file of its own.

Written whole before each step that depends on it. After a crash the maker goes on with the chunks
that are missing, if the exported snapshot still lives.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

import structlog

from tailrace.log.store import LocalStore
from tailrace.observe.figures import SnapshotFigures
from tailrace.postgres.publication import TableName
from tailrace.snapshot.export import Exported
from tailrace.snapshot.table import Stretch

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.snapshot.job import FormatName


@dataclass(slots=True, kw_only=True)
class Record:
    """A snapshot: asked for, being published, or over."""

    id: str
    table: TableName
    requested_at: float
    form: FormatName = "rows"
    topic: str = ""
    """Where all of it goes, if it has one subject."""
    state: str = "queued"
    """Then running, ending, and complete or failed."""
    snapshot: Exported | None = None
    stretches: list[Stretch] = field(default_factory=list)
    parallel: int = 1
    """How many of them go side by side: numbers of chunks depend on it."""
    done: int = 0
    """Stretches that are published."""
    number: int = 0
    """The next free number of a chunk."""
    chunks: int = 0
    rows: int = 0
    bytes: int = 0
    last: int = 0
    """The last message of the stream when the next stretches had not begun."""
    fingerprint: str = ""
    """What its messages depend on."""
    dictionary: str = ""
    """What its chunks are compressed with, in base64."""
    supersedes: str = ""
    error: str = ""
    begun_at: float = 0.0
    ended_at: float = 0.0

    def progress(self) -> SnapshotFigures:
        """The status figures of this snapshot."""
        return SnapshotFigures(
            id=self.id,
            table=str(self.table),
            format=self.form,
            state=self.state,
            requested_at=self.requested_at,
            seconds=(self.ended_at or time.time()) - self.begun_at if self.begun_at else 0.0,
            chunks=self.chunks,
            rows=self.rows,
            bytes=self.bytes,
            share=self.done / len(self.stretches) if self.stretches else 0.0,
            error=self.error,
        )

    def begin_anew(self, name: str) -> None:
        """Be another snapshot of the same table, or the same one if nobody has seen any of it."""
        self.supersedes = self.id if name != self.id else self.supersedes
        self.id = name
        self.snapshot, self.stretches, self.dictionary, self.fingerprint = None, [], "", ""
        self.done = self.number = self.chunks = self.rows = self.bytes = self.last = 0

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        content = asdict(self) | {"snapshot": self.snapshot.fields() if self.snapshot else None}
        LocalStore(folder, create=True).write_atomic(self._file, json.dumps(content).encode())

    def forget(self, folder: Path) -> None:
        """Remove the file."""
        with contextlib.suppress(FileNotFoundError):
            (folder / self._file).unlink()

    @property
    def _file(self) -> str:
        return f"{self.id}.json"

    @classmethod
    def load(cls, folder: Path) -> list[Self]:
        """The snapshots that are on their way, oldest first."""
        found = []
        for file in sorted(folder.glob("*.json")):
            try:
                found.append(cls._read(json.loads(file.read_text())))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                structlog.get_logger().warning(
                    "snapshot.unreadable", file=str(file), reason=str(error)
                )
        return found

    @classmethod
    def _read(cls, content: dict[str, Any]) -> Self:
        parts = {
            "table": TableName(**content["table"]),
            "snapshot": Exported.of(content["snapshot"]) if content["snapshot"] else None,
            "stretches": [
                Stretch(TableName(**each["leaf"]), each["first"], each["end"])
                for each in content["stretches"]
            ],
        }
        return cls(**content | parts)
