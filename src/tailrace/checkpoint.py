"""Reads Spark's checkpoint of a query: its start position and what it has delivered.

Spark writes `offsets/N` before a micro-batch and `commits/N` after it. Everything up to the offset
of the last commit is delivered; a batch without a commit is replayed as a whole. Spark does not
record where the first batch begins, so this module writes it once to `tailrace-start`: after a
crash `latest` must not mean a later position.

Spark does not fsync these files. After a power cut the newest files may be empty, and Spark then
refuses the whole checkpoint. `repair` removes them: their batches are replayed, and sinks skip what
they already hold. It also removes the temporary file of a write that a crash interrupted: Spark
does not start its first batch while there is one.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from tailrace import private
from tailrace.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def delivered(folder: Path) -> Position | None:
    """The position up to which every change is delivered; None before the first batch."""
    offset = _offset(folder)
    return None if offset is None else Position.parse(str(offset["position"]))


def delivered_page(folder: Path) -> int:
    """The number of the last delivered page of a backfill; 0 before the first."""
    # The offset's key is older than the name: it must stay.
    return int((_offset(folder) or {}).get("chunk", 0))


def _offset(folder: Path) -> dict[str, Any] | None:
    """The end offset of the last committed batch."""
    for batch in sorted(_batches(folder / "commits"), reverse=True):
        try:
            lines = (folder / "offsets" / str(batch)).read_text().splitlines()
            offset = json.loads(lines[-1])
            Position.parse(str(offset["position"]))
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            continue
        return dict(offset)
    return None


def fix_start(folder: Path, resolve: Callable[[], Position]) -> Position:
    """The start position of the query. The first call resolves and records it."""
    known = start(folder)
    if known is not None:
        return known
    position = resolve()
    _write_start(folder, position)
    return position


def start(folder: Path) -> Position | None:
    """The recorded start position; None if the query has never started."""
    try:
        return Position.parse((folder / "tailrace-start").read_text().strip())
    except FileNotFoundError:
        return None


def _write_start(folder: Path, position: Position) -> None:
    private.create_folder(folder)
    temporary = folder / "tailrace-start.tmp"
    with temporary.open("w") as file:
        file.write(f"{position}\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / "tailrace-start")


def repair(folder: Path, known: Callable[[], Position | None]) -> bool:
    """Remove what a crash left behind; whether batches are affected.

    That is every file that a power cut has emptied, all later ones, and temporary files. `known`
    returns a position from a file that was fsynced, up to which everything is delivered. If no
    batch remains, the query starts there.

        offsets      commits      emptied      remaining
        3 4 5        3 4 5        offsets/5    offsets 3 4, commits 3 4
        3 4 5        3 4 5        commits/4    offsets 3 4, commits 3: batch 4 is replayed
        3 4          3 4          all          nothing: the query starts at `known`
    """
    for kind in ("offsets", "commits"):
        for path in (folder / kind).glob(".*"):
            path.unlink()
    planned, done = _batches(folder / "offsets"), _batches(folder / "commits")
    torn = [batch for batch, path in [*planned.items(), *done.items()] if _empty(path)]
    if _empty(folder / "metadata"):
        (folder / "metadata").unlink()
    if not torn:
        return False
    first = min(torn)
    # Spark replays a planned batch only if the plan of the previous batch exists.
    replay = first in planned and not _empty(planned[first]) and (not first or first - 1 in planned)
    remaining = [batch for batch in planned if batch < first + replay]
    if not remaining and (position := known()) is not None:
        _write_start(folder, position)
    removed = [done[batch] for batch in sorted(done, reverse=True) if batch >= first]
    removed += [planned[batch] for batch in sorted(planned, reverse=True) if batch not in remaining]
    # A crash may interrupt the repair. The empty files go last: they show that it is needed.
    for path in sorted(removed, key=_empty):
        path.unlink()
    return True


def _batches(folder: Path) -> dict[int, Path]:
    return {int(path.name): path for path in folder.glob("*") if path.name.isdecimal()}


def _empty(path: Path) -> bool:
    """Whether a file is empty or holds only the zeros that some file systems leave there."""
    return path.exists() and not path.read_bytes().strip(b"\0")
