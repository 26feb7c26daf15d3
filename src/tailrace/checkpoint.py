"""Reads Spark's checkpoint of a query: its start position and what it has delivered.

Spark writes `offsets/N` before a micro-batch and `commits/N` after it. Everything up to the offset
of the last commit is delivered; a batch without a commit is replayed as a whole. Spark does not
record where the first batch begins, so this module writes it once to `tailrace-start`: after a
crash `latest` must not mean a later position.

Positions are of one log. The start record therefore names the history that they belong to: the id
of the log, and after a `tailrace reset` also an id of the reset, `ID+RESET`. Every offset repeats
it.

The offset of an open batch names the batch, and `tailrace.open_batch` knows where it ended.

Spark does not fsync these files. After a power cut the newest files may be empty, torn or missing,
and Spark then refuses the whole checkpoint. `repair` removes them: their batches are replayed, and
sinks skip what they already hold. It also removes the temporary file of a write that a crash
interrupted: Spark does not start its first batch while there is one.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from tailrace import private
from tailrace.errors import CorruptError, DivergedError
from tailrace.open_batch import OpenBatch, OpenBatches
from tailrace.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.log.format.mark import Mark


RESET = "See what is delivered again or skipped, then decide: tailrace reset PIPELINE --from ..."
# Offsets go last: they show that a reset is not finished.
_OPEN = "tailrace-open"
_BATCH_FILES = (_OPEN, "commits", "sources", "state", "metadata", "offsets")


def folder_of(data: Path, pipeline: str) -> Path:
    """The checkpoint of a pipeline."""
    return data / "checkpoints" / pipeline


def open_folder(folder: Path) -> Path:
    """The folder with the records of open batches."""
    return folder / _OPEN


def open_batches(folder: Path) -> OpenBatches:
    """The open batches of a checkpoint."""
    return OpenBatches(open_folder(folder))


class LogEnd(Protocol):
    """What a checkpoint is compared with."""

    @property
    def id(self) -> str:
        """The id of the log."""

    def durable_end(self) -> Mark:
        """The end of the log, which may be beyond what readers may see."""


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Where a query begins, and the history that its positions belong to.

    >>> StartRecord.parse("0/1A.3\\n5f0c2a9e+77aa01c2\\n").log_id
    '5f0c2a9e'
    """

    position: Position
    history: str = ""

    @classmethod
    def parse(cls, text: str) -> StartRecord:
        """Read the file: the position, then the history."""
        position, _, history = text.strip().partition("\n")
        return cls(Position.parse(position), history)

    def __str__(self) -> str:
        return f"{self.position}\n{self.history}\n"

    @property
    def log_id(self) -> str:
        """The log that the positions are of."""
        return self.history.partition("+")[0]

    @classmethod
    def after_reset(cls, log_id: str, position: Position) -> StartRecord:
        """The record that a reset writes."""
        return cls(position, f"{log_id}+{uuid.uuid4().hex[:8]}")

    @property
    def reset(self) -> bool:
        """Whether a reset wrote the record."""
        return "+" in self.history


def check_history(folder: Path, record: StartRecord, log: LogEnd) -> None:
    """Raise DivergedError if the positions of a checkpoint are not positions of this log."""
    if record.log_id != log.id:
        raise DivergedError(
            f"the checkpoint {folder} belongs to the log {record.log_id or 'without an id'}, "
            f"but this log is {log.id or 'without an id'}",
            hint=RESET,
        )
    # The visible end is not durable: after a power cut it may be before what was delivered.
    position, end = delivered(folder), log.durable_end().end_lsn
    if position is not None and position != record.position and position.lsn > end:
        raise DivergedError(
            f"the checkpoint {folder} is at {position}, but the log ends at {end}", hint=RESET
        )


def delivered(folder: Path) -> Position | None:
    """The position up to which every change is delivered; None before the first batch."""
    # Before the last commit is read: the batch may be committed meanwhile.
    batch = running(folder)
    offset = _offset(folder)
    position = None if offset is None else Position.parse(str(offset["position"]))
    if batch is None and offset is not None and position is not None:
        # A power cut may have removed the offset of a batch, but not its records.
        batch = OpenBatch(int(offset.get("opened", 0)) + 1, position)
    if batch is not None:
        reached = open_batches(folder).reached(batch)
        return reached if position is None else max(position, reached)
    return position


def running(folder: Path) -> OpenBatch | None:
    """The open batch that is planned and not committed."""
    planned, done = _batches(folder / "offsets"), _batches(folder / "commits")
    newest = max(planned, default=-1)
    if newest <= max(done, default=-1):
        return None
    offset = _read_offset(planned[newest])
    if offset is None or _precedes_reset(offset, read_start(folder)):
        return None
    return _open_batch(offset)


def _open_batch(offset: dict[str, Any]) -> OpenBatch | None:
    """The open batch that an offset names; None if its end is a position."""
    if not offset.get("open"):
        return None
    return OpenBatch(int(offset["opened"]), Position.parse(str(offset["position"])))


def _resolve(folder: Path, offset: dict[str, Any]) -> dict[str, Any]:
    """The offset of a committed batch, with the position where the batch ended."""
    batch = _open_batch(offset)
    if batch is None:
        return offset
    upto = open_batches(folder).closed(batch)
    if upto is None:
        raise CorruptError(f"{folder} has no record of where batch {batch} ended", hint=RESET)
    return offset | {"position": str(upto)}


def delivered_page(folder: Path) -> int:
    """The number of the last delivered page of a backfill; 0 before the first."""
    # The offset's key is older than the name: it must stay.
    return int((_offset(folder) or {}).get("chunk", 0))


def _offset(folder: Path) -> dict[str, Any] | None:
    """The end offset of the last committed batch."""
    for batch in sorted(_batches(folder / "commits"), reverse=True):
        offset = _read_offset(folder / "offsets" / str(batch))
        if offset is not None:
            reset = _precedes_reset(offset, read_start(folder))
            return None if reset else _resolve(folder, offset)
    return None


def _precedes_reset(offset: dict[str, Any], record: StartRecord | None) -> bool:
    """Whether a batch is of the history before a reset, which was interrupted or still runs."""
    return record is not None and record.reset and offset.get("history") != record.history


def _read_offset(path: Path) -> dict[str, Any] | None:
    """The offset that Spark planned for a batch; None if the file is missing or torn."""
    try:
        offset = json.loads(path.read_text().splitlines()[-1])
        Position.parse(str(offset["position"]))
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None
    return dict(offset)


def fix_start(folder: Path, resolve: Callable[[], Position], *, history: str) -> StartRecord:
    """Where the query begins. The first call resolves and records it."""
    record = read_start(folder)
    if record is None:
        record = StartRecord(resolve(), history)
        write_start(folder, record)
    return record


def start(folder: Path) -> Position | None:
    """The recorded start position; None if the query has never started."""
    record = read_start(folder)
    return None if record is None else record.position


def read_start(folder: Path) -> StartRecord | None:
    """The start record; None if the query has never started. CorruptError if it is damaged."""
    path = folder / "tailrace-start"
    try:
        return StartRecord.parse(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptError(f"{path} is not a start record: {error}", hint=RESET) from error


def write_start(folder: Path, record: StartRecord) -> None:
    """Replace the start record, durably."""
    private.create_folder(folder)
    temporary = folder / "tailrace-start.tmp"
    with temporary.open("w") as file:
        file.write(str(record))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / "tailrace-start")


def reset(folder: Path, record: StartRecord) -> None:
    """Begin again at another position. A crash in between leaves the rest to `repair`."""
    write_start(folder, record)
    _remove_batches(folder)


def _remove_batches(folder: Path) -> None:
    for name in _BATCH_FILES:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def repair(folder: Path, known: Callable[[], Position | None]) -> bool:
    """Remove what a crash left behind; whether batches are affected.

    That is every file that a power cut has emptied or torn, all later ones, temporary files, and
    all batches before an interrupted reset. `known` returns a position from a file that was
    fsynced, up to which everything is delivered. If no batch remains, the query starts there.

        offsets      commits      damaged              remaining
        3 4 5        3 4 5        offsets/5            offsets 3 4, commits 3 4
        3 4          3 4 5        offsets/5 missing    offsets 3 4, commits 3 4
        3 4 5        3 4 5        commits/4            offsets 3 4, commits 3: batch 4 is replayed
        3 4          3 4          all                  nothing: the query starts at `known`
    """
    record = read_start(folder)
    offsets = map(_read_offset, _batches(folder / "offsets").values())
    if any(offset and _precedes_reset(offset, record) for offset in offsets):
        _remove_batches(folder)
    for kind in ("offsets", "commits"):
        for path in (folder / kind).glob(".*"):
            path.unlink()
    if _torn(folder / "metadata", lines=0):
        (folder / "metadata").unlink()
    planned, done = _batches(folder / "offsets"), _batches(folder / "commits")
    torn = {batch for batch, path in planned.items() if _torn(path, lines=3)}
    newest = max(planned, default=-1)
    undone = {batch for batch, path in done.items() if batch > newest or _torn(path, lines=2)}
    if not torn | undone:
        return False
    first = min(torn | undone)
    # Spark replays a planned batch only if the plan of the previous batch exists.
    replay = first in planned and first not in torn and (not first or first - 1 in planned)
    remaining = [batch for batch in planned if batch < first + replay]
    if not remaining and (position := known()) is not None:
        write_start(folder, replace(record or StartRecord(position), position=position))
    removed = [done[batch] for batch in sorted(done, reverse=True) if batch >= first]
    removed += [planned[batch] for batch in sorted(planned, reverse=True) if batch not in remaining]
    # A crash may interrupt the repair. The damaged files go last: they show that it is needed.
    damaged = {planned[batch] for batch in torn} | {done[batch] for batch in undone}
    for path in sorted(removed, key=damaged.__contains__):
        path.unlink()
    return True


def batches_of(folder: Path) -> tuple[object, ...]:
    """What is planned, closed and committed, and since which reset: to see whether it changes."""
    kinds = ("offsets", "commits", _OPEN)
    names = (sorted(path.name for path in (folder / kind).glob("[0-9c]*")) for kind in kinds)
    return read_start(folder), *map(tuple, names)


def _batches(folder: Path) -> dict[int, Path]:
    return {int(path.name): path for path in folder.glob("*") if path.name.isdecimal()}


def _torn(path: Path, *, lines: int) -> bool:
    """Whether a power cut left a file of Spark's without its end: `v1`, then lines of JSON.

    Some file systems leave zeros. A file that does not begin like Spark's was damaged, or written,
    by something else, and stays.
    """
    try:
        content = path.read_bytes().rstrip(b"\0")
    except FileNotFoundError:
        return False
    if not content or not lines:
        return not content
    found = content.split(b"\n")
    if not b"v1".startswith(found[0]):
        return False
    try:
        json.loads(found[lines - 1])
    except (ValueError, IndexError):
        return True
    return False
