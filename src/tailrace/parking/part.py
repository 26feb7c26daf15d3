"""Parts: what tasks have parked, in files, until their micro-batch is committed.

    00000000016B3748-4611686018427387904-7b1d….part     the last position, then a unique name

What is in a part is parked, also if its micro-batch is interrupted: the replay finds it there
(`places`), and neither sends it nor parks it again. A sink may have stored its position after it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.errors import CorruptError
from tailrace.log.store import LocalStore
from tailrace.message import PLACE, last_of, places_of, rows_up_to
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_SUFFIX = ".part"
_HISTORY = b"history"
_PACKING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """One file."""

    last: Position
    """The position of its last row."""
    name: str

    @classmethod
    def parse(cls, name: str) -> Part:
        """From the name of the file."""
        lsn, ordinal, _ = name.removesuffix(_SUFFIX).split("-")
        return cls(Position(Lsn(int(lsn, 16)), int(ordinal)), name)


class Parts:
    """The parts of one pipeline, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, rows: pa.RecordBatch, *, history: str) -> None:
        """Write rows of PARKED, in order of position, durably."""
        last = last_of(rows)
        name = f"{last.lsn:016X}-{last.ordinal}-{uuid.uuid4().hex}{_SUFFIX}"
        LocalStore(self._folder, create=True).write_atomic(name, pack(rows, history=history))

    def all(self) -> list[Part]:
        """All parts, in order of their last position."""
        names = LocalStore(self._folder).names()
        return sorted(Part.parse(name) for name in names if name.endswith(_SUFFIX))

    def read(self, part: Part) -> tuple[pa.RecordBatch, str]:
        """The rows of a part, and the history of their positions."""
        return unpack(self._folder / part.name)

    def keep_from(self, part: Part, rows: pa.RecordBatch, first: int, *, history: str) -> None:
        """Keep the rows of a part from a row on, durably; without any, remove the part."""
        store = LocalStore(self._folder)
        if first < rows.num_rows:
            store.write_atomic(part.name, pack(rows.slice(first), history=history))
        else:
            store.remove(part.name)

    def places(self, after: Position, *, history: str) -> NDArray[np.void]:
        """The positions of all rows after a position."""
        found = [np.empty(0, PLACE)]
        for part in self.all():
            if part.last > after:
                rows, own_history = self.read(part)
                if own_history == history:
                    found.append(places_of(rows.slice(rows_up_to(rows, after))))
        return np.concatenate(found)


def pack(rows: pa.RecordBatch, *, history: str = "") -> bytes:
    """The content of a file with rows."""
    content = pa.BufferOutputStream()
    schema = rows.schema.with_metadata({_HISTORY: history})
    with pa.ipc.new_stream(content, schema, options=_PACKING) as stream:
        stream.write_batch(rows.replace_schema_metadata(schema.metadata))
    packed: bytes = content.getvalue().to_pybytes()
    return packed


def unpack(path: Path) -> tuple[pa.RecordBatch, str]:
    """The rows of a file, and the history of their positions."""
    try:
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            rows = stream.read_next_batch()
    except (OSError, pa.ArrowInvalid) as error:
        raise CorruptError(
            f"cannot read the parked messages in {path}: {error}",
            hint="Restore the data folder from a backup; its files must not be edited.",
        ) from error
    history = (rows.schema.metadata or {}).get(_HISTORY, b"").decode()
    return rows.replace_schema_metadata(None), history
