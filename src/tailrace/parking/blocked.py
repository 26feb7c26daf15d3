"""Which groups of messages are blocked where a task begins, in files.

    00000000016B3748-3.blocked     the position from which on it applies

A task takes the newest file up to the position where it begins. The planner writes a file before it
plans a micro-batch, and changes none that a planned batch begins after. So a replayed batch holds
back the same messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.errors import CorruptError
from tailrace.log.store import LocalStore
from tailrace.position import Lsn, Position
from tailrace.sinks.blocked import BlockedGroups

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tailrace.decode.hashes import Hashes

_SUFFIX = ".blocked"
_KEPT = 20
"""Files before the newest that remain. Spark keeps the offsets of so many batches."""
_FIELDS = pa.schema([pa.field(name, pa.list_(pa.uint64())) for name in ("keys", "tables", "whole")])


class BlockedFiles:
    """The files of a pipeline, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, position: Position, columns: Sequence[Hashes]) -> None:
        """Write what is blocked from a position on: keys, their tables, and whole tables."""
        batch = pa.RecordBatch.from_arrays(
            [pa.array([each], pa.list_(pa.uint64())) for each in columns], schema=_FIELDS
        )
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, _FIELDS) as stream:
            stream.write_batch(batch)
        store = LocalStore(self._folder, create=True)
        store.write_atomic(_name(position), content.getvalue().to_pybytes())
        for name in self._names()[: -_KEPT - 1]:
            (self._folder / name).unlink(missing_ok=True)

    def at(self, position: Position) -> BlockedGroups:
        """What is blocked for a task that begins at a position."""
        names = [name for name in self._names() if _position(name) <= position]
        if not names:
            return BlockedGroups()
        path = self._folder / names[-1]
        try:
            with pa.ipc.open_stream(path.read_bytes()) as stream:
                batch = stream.read_next_batch()
        except (OSError, pa.ArrowInvalid) as error:
            raise CorruptError(
                f"cannot read which messages have to wait in {path}: {error}",
                hint="Restore the data folder from a backup; its files must not be edited.",
            ) from error
        columns = (batch.column(number).flatten().to_numpy() for number in range(3))
        return BlockedGroups(*(np.asarray(each, np.uint64) for each in columns))

    def remove_all(self) -> None:
        """Remove all files: positions have another meaning from now on."""
        for name in self._names():
            (self._folder / name).unlink(missing_ok=True)

    def _names(self) -> list[str]:
        """In order of position."""
        names = LocalStore(self._folder).names()
        return sorted((name for name in names if name.endswith(_SUFFIX)), key=_position)


def _name(position: Position) -> str:
    return f"{position.lsn:016X}-{position.ordinal}{_SUFFIX}"


def _position(name: str) -> Position:
    lsn, _, ordinal = name.removesuffix(_SUFFIX).partition("-")
    return Position(Lsn(int(lsn, 16)), int(ordinal))
