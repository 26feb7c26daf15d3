"""Which messages a destination has accepted, for the next attempt of their batch.

Spark replays an interrupted micro-batch from its start. A destination that does not know our
positions would get all its messages again. So each answer that accepts messages is noted at once,
and a replay skips what is noted: it repeats at most the requests that had no answer yet.

    5f0c2a9e-0.accepted     history and lane; 16 bytes per message: LSN and ordinal, little-endian

The file is not synced: it survives the death of every process, and a power cut may lose its end.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace import private
from tailrace.message import PLACE, places_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tailrace.position import Position

_SUFFIX = ".accepted"


class Acknowledged:
    """The accepted messages of one lane. Without a folder nothing is noted."""

    def __init__(self, folder: Path | None, *, history: str, lane: int) -> None:
        self._folder = folder
        self._history = history
        self._name = f"{history}-{lane}{_SUFFIX}"
        self._file = -1
        self._known = np.empty(0, PLACE)

    def open(self, after: Position) -> None:
        """Begin a micro-batch after a position: load what earlier attempts have noted of it."""
        self.close()
        if self._folder is None:
            return
        private.create_folder(self._folder)
        noted = []
        # Of all lanes: a message may be in another one, if their number was changed.
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if path.name.startswith(f"{self._history}-"):
                noted.append(_read(path))
            else:
                path.unlink(missing_ok=True)
        places = np.concatenate(noted) if noted else self._known
        beyond = (places["lsn"] > after.lsn) | (
            (places["lsn"] == after.lsn) & (places["ordinal"] > after.ordinal)
        )
        self._known = np.unique(places[beyond])
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._folder / self._name, flags, private.FILE_MODE)
        if not len(self._known):
            os.ftruncate(self._file, 0)

    def missing(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """The messages that are not known to be accepted."""
        known = self.known(messages)
        return messages if known is None else messages.filter(pa.array(~known))

    def known(self, messages: pa.RecordBatch) -> NDArray[np.bool_] | None:
        """Which messages are known to be accepted; None if none is."""
        if not len(self._known) or not messages.num_rows:
            return None
        found: NDArray[np.bool_] = np.isin(places_of(messages), self._known)
        return found if found.any() else None

    def note(self, messages: pa.RecordBatch) -> None:
        """Note that messages were accepted. Called by several threads."""
        if self._file >= 0 and messages.num_rows:
            os.write(self._file, places_of(messages).tobytes())

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _read(path: Path) -> NDArray[np.void]:
    """The places in a file; the last one may be incomplete."""
    content = path.read_bytes()
    return np.frombuffer(content[: len(content) // PLACE.itemsize * PLACE.itemsize], PLACE)
