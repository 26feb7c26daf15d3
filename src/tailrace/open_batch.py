"""Open batches: micro-batches that Spark plans without knowing where they end.

A batch that is planned, scheduled and committed for a handful of changes delays each of them by a
tenth of a second. A batch is therefore planned with an open end where it can be. Its task follows
the log, delivers changes as they become durable, and closes the batch after some seconds.

Spark's offset names such a batch by its number and by the position that it begins after. This
module keeps, in a folder of the checkpoint, what the offset cannot say:

    closed-7@0-16B3748.3     where the batch ended; written once, durably
    progress                 how far the running batch has delivered, and its figures
    settled                  how far a batch had delivered some seconds ago, durably
    owner                    the task that delivers it; a task that finds another one here ends
    close                    a request to close the running batch
    0.written                the last message that lane 0 has written, for the watchdog only

The record of the end is written after the sink has everything durably and before the task succeeds.
So a batch that Spark replays has a record, and nothing is left to deliver, or it has none, and its
task follows the log again, from `progress` on, and sinks skip what they hold. `progress` is not
fsynced: an older one only means that more is delivered again. The log removes nothing after
`settled`, which is fsynced: a batch finds everything that it may deliver again.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Self

from tailrace import private
from tailrace.errors import DiskFullError, SinkFencedError, StorageError
from tailrace.log.store import LocalStore, raise_translated, replace_record, sync_folder
from tailrace.observe import failpoint
from tailrace.position import Position

if TYPE_CHECKING:
    from pathlib import Path

WRITTEN = ".written"
_SETTLED_BYTES = 256
_KEPT = 20
"""Records of earlier batches that remain; Spark keeps the offsets of as many batches."""


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """The identity of an open batch.

    >>> str(OpenBatch(7, Position.parse("0/16B3748.3")))
    '7@0/16B3748.3'
    >>> OpenBatch.parse("7@0/16B3748.3").number
    7
    """

    number: int
    after: Position

    def __str__(self) -> str:
        return f"{self.number}@{self.after}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of an identity."""
        number, _, after = text.partition("@")
        return cls(int(number), Position.parse(after))

    @property
    def file(self) -> str:
        """The name of its record."""
        return f"closed-{self}".replace("/", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProgress:
    """What an open batch has delivered so far."""

    batch: str = ""
    """The identity of the batch."""
    reached: str = ""
    """Everything up to this position is durable in the sink."""
    messages: int = 0
    bytes: int = 0
    duplicates: int = 0
    parked: int = 0
    p50_us: int | None = None
    p99_us: int | None = None
    committed_us: int | None = None
    refusals: str | None = None
    failed: int = 0
    """Attempts to deliver a message that failed."""
    latencies: str | None = None
    """`tailrace.pipeline.latencies` as JSON."""

    def beyond(self, before: OpenProgress | None) -> bool:
        """Whether it has come further than an earlier note, or than the start of its batch."""
        if before is not None and before.batch == self.batch:
            return Position.parse(self.reached) > Position.parse(before.reached)
        return Position.parse(self.reached) > OpenBatch.parse(self.batch).after


class OpenBatches:
    """The open batches of one pipeline."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def close(self, batch: OpenBatch, upto: Position) -> Position:
        """Record where a batch ends, durably. Returns the end that was recorded first."""
        failpoint.hit("open.before-record")
        temporary = self._folder / f"{uuid.uuid4().hex}.tmp"
        try:
            with private.create_file(temporary, buffering=0) as file:
                file.write(f"{upto}\n".encode())
                os.fsync(file.fileno())
            # A link fails if the name exists: of two tasks one decides.
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self._folder / batch.file)
            sync_folder(self._folder)
        except OSError as error:
            raise_translated(error, f"cannot record the end of batch {batch}")
        finally:
            temporary.unlink(missing_ok=True)
        failpoint.hit("open.after-record")
        closed = self.closed(batch)
        assert closed is not None
        return closed

    def closed(self, batch: OpenBatch) -> Position | None:
        """Where a batch ended; None if it was never closed."""
        try:
            return Position.parse((self._folder / batch.file).read_text().strip())
        except FileNotFoundError:
            return None

    def begin(self, batch: OpenBatch) -> Position:
        """The position after which a task of the batch begins: an earlier one may have come far."""
        notes = (self._read("progress"), self._read("settled"))
        reached = [note.reached for note in notes if note is not None and note.batch == str(batch)]
        return max([batch.after, *map(Position.parse, reached)])

    def began(self, batch: OpenBatch) -> bool:
        """Whether something of a batch was delivered."""
        return self.closed(batch) is not None or self.begin(batch) > batch.after

    def reached(self, batch: OpenBatch) -> Position:
        """How far a batch has come, and the open batches right after it."""
        while (closed := self.closed(batch)) is not None:
            batch = OpenBatch(batch.number + 1, closed)
        return self.begin(batch)

    def note(self, batch: OpenBatch, progress: OpenProgress) -> None:
        """Replace the progress of the running batch. A full disk keeps the older one."""
        with contextlib.suppress(DiskFullError, StorageError):
            self._replace("progress", json.dumps(asdict(replace(progress, batch=str(batch)))))

    def progress(self) -> OpenProgress | None:
        """The progress of the batch that runs or ran last; None if there is none."""
        return self._read("progress")

    def settle(self, progress: OpenProgress) -> None:
        """Make durable how far a batch has come: then the log need not keep what is before."""
        note = json.dumps({"batch": progress.batch, "reached": progress.reached})
        replace_record(LocalStore(self._folder), "settled", note.ljust(_SETTLED_BYTES).encode())

    def note_written(self, lane: int, position: Position) -> None:
        """Note what a lane has written to the sink, whether it is durable there or not."""
        with contextlib.suppress(DiskFullError, StorageError):
            self._replace(f"{lane}{WRITTEN}", str(position))

    def written(self) -> dict[int, Position]:
        """What the lanes have noted, of those that had to write for long."""
        found = {}
        for path in self._folder.glob(f"*{WRITTEN}"):
            with contextlib.suppress(OSError, ValueError):
                lane = int(path.name.removesuffix(WRITTEN))
                found[lane] = Position.parse(path.read_text())
        return found

    def _read(self, name: str) -> OpenProgress | None:
        try:
            values = json.loads((self._folder / name).read_text())
            Position.parse(values["reached"])
            OpenBatch.parse(values["batch"])
            return OpenProgress(**values)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def own(self) -> str:
        """Become the task that delivers. Returns a token for `check_owner`."""
        token = uuid.uuid4().hex
        self._replace("owner", token)
        return token

    def check_owner(self, token: str) -> None:
        """Raise SinkFencedError if another task has taken over, or the pipeline was moved."""
        try:
            owner = (self._folder / "owner").read_text()
        except FileNotFoundError:
            owner = ""
        if owner != token:
            raise SinkFencedError("another task delivers this batch by now")

    def request_close(self) -> None:
        """Ask the task of the running batch to close it; no further batch is planned."""
        self._replace("close", "")

    @property
    def close_requested(self) -> bool:
        """Whether `request_close` was called since the query started."""
        return (self._folder / "close").exists()

    def start_query(self) -> None:
        """Create the folder, and forget a request to close: it was for an earlier query."""
        private.create_folder(self._folder)
        for path in (self._folder / "close", *self._folder.glob(f"*{WRITTEN}")):
            path.unlink(missing_ok=True)

    def prune(self, number: int) -> None:
        """Remove records of batches long before this number."""
        for path in self._folder.glob("closed-*"):
            if int(path.name.removeprefix("closed-").partition("@")[0]) < number - _KEPT:
                path.unlink(missing_ok=True)

    def _replace(self, name: str, text: str) -> None:
        temporary = self._folder / f"{uuid.uuid4().hex}.tmp"
        try:
            with private.create_file(temporary, buffering=0) as file:
                file.write(text.encode())
            temporary.rename(self._folder / name)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise_translated(error, f"cannot write {name} of open batches")
