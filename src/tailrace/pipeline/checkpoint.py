"""How far a query has come, by its checkpoint, and where it began.

Spark writes `offsets/N` before a micro-batch and `commits/N` after it. What the last commit names
is delivered; a batch that was begun and not committed comes again as a whole. Spark does not keep
where the first batch begins, so that is written here, once: `latest` must not mean a later place
after a crash.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from tailrace.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def delivered(folder: Path) -> Position | None:
    """The position up to which everything is delivered; None before the first batch."""
    names = [path.name for path in (folder / "commits").glob("*")]
    for batch in sorted((int(name) for name in names if name.isdecimal()), reverse=True):
        try:
            lines = (folder / "offsets" / str(batch)).read_text().splitlines()
            return Position.parse(str(json.loads(lines[-1])["position"]))
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return None


def beginning(folder: Path, resolve: Callable[[], Position]) -> Position:
    """Where the query begins or began; `resolve` is asked the first time."""
    path = folder / "tailrace-start"
    try:
        return Position.parse(path.read_text().strip())
    except FileNotFoundError:
        pass
    position = resolve()
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "tailrace-start.tmp"
    with temporary.open("w") as file:
        file.write(f"{position}\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return position
