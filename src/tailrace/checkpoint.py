"""How far a query has come, by its checkpoint, and where it began.

Spark writes `offsets/N` before a micro-batch and `commits/N` after it. What the last commit names
is delivered; a batch that was begun and not committed comes again as a whole. Spark does not keep
where the first batch begins, so that is written here, once: `latest` must not mean a later place
after a crash.

Spark does not fsync these files. After a power cut the youngest may be empty, and Spark then
refuses the whole checkpoint. `mend` takes them away: their batches come again, and sinks know what
they hold.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from tailrace.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def delivered(folder: Path) -> Position | None:
    """The position up to which everything is delivered; None before the first batch."""
    offset = _offset(folder)
    return None if offset is None else Position.parse(str(offset["position"]))


def chunk(folder: Path) -> int:
    """The last chunk of a backfill that is delivered; 0 before the first."""
    return int((_offset(folder) or {}).get("chunk", 0))


def _offset(folder: Path) -> dict[str, Any] | None:
    """Where the last committed batch ended."""
    for batch in sorted(_batches(folder / "commits"), reverse=True):
        try:
            lines = (folder / "offsets" / str(batch)).read_text().splitlines()
            offset = json.loads(lines[-1])
            Position.parse(str(offset["position"]))
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            continue
        return dict(offset)
    return None


def beginning(folder: Path, resolve: Callable[[], Position]) -> Position:
    """Where the query begins or began; `resolve` is asked the first time."""
    known = began(folder)
    if known is not None:
        return known
    position = resolve()
    _begin(folder, position)
    return position


def began(folder: Path) -> Position | None:
    """Where the query began; None if it never did."""
    try:
        return Position.parse((folder / "tailrace-start").read_text().strip())
    except FileNotFoundError:
        return None


def _begin(folder: Path, position: Position) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "tailrace-start.tmp"
    with temporary.open("w") as file:
        file.write(f"{position}\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / "tailrace-start")


def mend(folder: Path, known: Callable[[], Position | None]) -> bool:
    """Remove what a power cut has left empty, and what came after it; whether there was any.

    `known` gives a position up to which everything is delivered, as something that was fsynced has
    it: when nothing else is left, the query begins there.
    """
    planned, done = _batches(folder / "offsets"), _batches(folder / "commits")
    torn = [batch for batch, path in [*planned.items(), *done.items()] if _empty(path)]
    if _empty(folder / "metadata"):
        (folder / "metadata").unlink()
    if not torn:
        return False
    first = min(torn)
    # Spark runs a planned batch again only if it finds the plan of the one before.
    again = first in planned and not _empty(planned[first]) and (not first or first - 1 in planned)
    kept = [batch for batch in planned if batch < first + again]
    if not kept and (position := known()) is not None:
        _begin(folder, position)
    gone = [done[batch] for batch in sorted(done, reverse=True) if batch >= first]
    gone += [planned[batch] for batch in sorted(planned, reverse=True) if batch not in kept]
    # This may be cut off, too: what shows that there is something to mend goes last.
    for path in sorted(gone, key=_empty):
        path.unlink()
    return True


def _batches(folder: Path) -> dict[int, Path]:
    return {int(path.name): path for path in folder.glob("*") if path.name.isdecimal()}


def _empty(path: Path) -> bool:
    """Whether a file holds nothing, or the zeros some file systems put there."""
    return path.exists() and not path.read_bytes().strip(b"\0")
