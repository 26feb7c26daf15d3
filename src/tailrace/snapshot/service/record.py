"""The state of a requested snapshot, one file each.

The maker replaces the file before every step that depends on it. After a crash it resumes with the
missing chunks, if the exported snapshot still exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Self

import structlog
from pydantic import PlainSerializer, PlainValidator

from tailrace.errors import CorruptError
from tailrace.observe.copies import SnapshotFigures
from tailrace.postgres.names import TableName  # noqa: TC001 - pydantic reads the annotations
from tailrace.snapshot.export import Exported
from tailrace.snapshot.job import FormatName  # noqa: TC001 - pydantic reads the annotations
from tailrace.snapshot.table import Stretch  # noqa: TC001 - pydantic reads the annotations
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from pathlib import Path

FINISHED = frozenset({"complete", "failed"})
"""The states in which a snapshot stays."""


def _parse(fields: dict[str, str] | Exported) -> Exported:
    try:
        return fields if isinstance(fields, Exported) else Exported.of(fields)
    except (KeyError, TypeError) as error:
        # pydantic turns a ValueError into an error that names the field.
        raise ValueError(f"invalid exported snapshot: {error!r}") from error


ExportedFields = Annotated[Exported, PlainValidator(_parse), PlainSerializer(Exported.fields)]
"""An exported snapshot that is stored as texts."""


@dataclass(slots=True, kw_only=True)
class Record:
    """A snapshot: requested, being published, or finished."""

    id: str
    table: TableName
    requested_at: float
    form: FormatName = "rows"
    topic: str = ""
    """The subject of all its messages, for formats that use one subject."""
    state: str = "queued"
    """Then running, ending, and complete or failed."""
    snapshot: ExportedFields | None = None
    stretches: list[Stretch] = field(default_factory=list)
    parallel: int = 1
    """How many stretches are published in parallel: chunk numbers depend on it."""
    done: int = 0
    """Number of stretches that are published."""
    number: int = 0
    """The next free chunk number."""
    chunks: int = 0
    rows: int = 0
    bytes: int = 0
    last: int = 0
    """The stream sequence before the next stretches."""
    fingerprint: str = ""
    """The format's fingerprint: what its messages depend on."""
    dictionary: str = ""
    """The compression dictionary of its chunks, in base64."""
    supersedes: str = ""
    """The id of the snapshot that this one replaces."""
    error: str = ""
    begun_at: float = 0.0
    ended_at: float = 0.0

    def progress(self, now: float) -> SnapshotFigures:
        """The status figures of this snapshot. `now` is in Unix seconds."""
        stretches = len(self.stretches)  # once: another thread may restart the snapshot
        return SnapshotFigures(
            id=self.id,
            table=str(self.table),
            format=self.form,
            state=self.state,
            requested_at=self.requested_at,
            seconds=max((self.ended_at or now) - self.begun_at, 0.0) if self.begun_at else 0.0,
            chunks=self.chunks,
            rows=self.rows,
            bytes=self.bytes,
            share=self.done / stretches if stretches else 0.0,
            error=self.error,
        )

    def restart(self, new_id: str, folder: Path) -> None:
        """Become a new snapshot of the same table, durably.

        The id stays the same if no message of the snapshot is in the stream yet. A crash leaves the
        file of the old id, the file of the new one, or both: `load` then removes the old one.
        """
        old_file, old_id = self._file(folder), self.id
        self.supersedes = old_id if new_id != old_id else self.supersedes
        self.id = new_id
        self.snapshot, self.stretches, self.dictionary, self.fingerprint = None, [], "", ""
        self.done = self.number = self.chunks = self.rows = self.bytes = self.last = 0
        self.save(folder)
        if new_id != old_id:
            old_file.remove()

    def save(self, folder: Path) -> None:
        """Replace the file, durably."""
        self._file(folder).write(self)

    def remove(self, folder: Path) -> None:
        """Remove the file."""
        self._file(folder).remove()

    def _file(self, folder: Path) -> StateFile[Self]:
        return StateFile(folder / f"{self.id}.json", type(self))

    @classmethod
    def load(cls, folder: Path) -> list[Self]:
        """The unfinished snapshots, oldest first. Invalid files are logged and skipped."""
        records = []
        for path in sorted(folder.glob("*.json")):
            try:
                record = StateFile(path, cls).read()
            except CorruptError as error:
                structlog.get_logger().warning(
                    "snapshot.file_invalid", file=str(path), reason=str(error)
                )
                continue
            if record is not None:
                records.append(record)
        superseded = {record.supersedes for record in records}
        for record in records:
            if record.id in superseded:
                record.remove(folder)
        return [record for record in records if record.id not in superseded]
