"""Positions of messages of the current micro-batch, noted in a file for its next attempt.

Spark replays an interrupted micro-batch from its start. What has become of its messages would be
forgotten, and a destination that does not know our positions cannot be asked.

    5f0c2a9e-0.accepted     history and lane; 16 bytes per message: LSN and ordinal, little-endian
    5f0c2a9e-0.failed       the same

The files are not synced: they survive the death of every process, and a power cut may lose the end
of one.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import numpy as np

from tailrace import private
from tailrace.message import PLACE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tailrace.position import Position


class Places:
    """The positions that one lane notes, and those that all lanes have noted before.

    Without a folder nothing is noted.
    """

    def __init__(self, folder: Path | None, *, history: str, lane: int, suffix: str) -> None:
        self._folder = folder
        self._history = history
        self._suffix = suffix
        self._name = f"{history}-{lane}{suffix}"
        self._lock = threading.Lock()
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
        for path in self._folder.glob(f"*{self._suffix}"):
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

    def known(self, places: NDArray[np.void]) -> NDArray[np.bool_]:
        """Which positions earlier attempts have noted."""
        return np.isin(places, self._known) if self else np.zeros(len(places), np.bool_)

    def __bool__(self) -> bool:
        """Whether earlier attempts have noted any."""
        return bool(len(self._known))

    def note(self, places: NDArray[np.void]) -> None:
        """Note positions. Called by several threads, and perhaps after `close`."""
        content = places.tobytes()
        # `close` waits: a closed descriptor may be of another file a moment later.
        with self._lock:
            if self._file >= 0 and content:
                os.write(self._file, content)

    def others(self) -> Iterator[Path]:
        """The files of other lanes."""
        if self._folder is not None:
            for path in self._folder.glob(f"{self._history}-*{self._suffix}"):
                if path.name != self._name:
                    yield path

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            file, self._file = self._file, -1
            if file >= 0:
                os.close(file)


def _read(path: Path) -> NDArray[np.void]:
    """The positions in a file; the last one may be incomplete."""
    content = path.read_bytes()
    return np.frombuffer(content[: len(content) // PLACE.itemsize * PLACE.itemsize], PLACE)
