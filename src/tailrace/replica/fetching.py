"""Fetching: a sealed segment that a follower gets again, in files beside the damaged ones.

The new files take the place of the old ones by a rename, once every byte is checked and durable:
readers see the damaged segment or the sound one.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, cast

from tailrace import private
from tailrace.errors import CorruptError, MalformedError
from tailrace.log.format.segment import list_segments, read_header
from tailrace.log.sealed import Reading, header_after, index_is_whole
from tailrace.log.store import raise_translated, sync_folder, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.log.format.segment import SegmentName
    from tailrace.log.store import LocalStore, Store
    from tailrace.replica.frames import Data, Fetched

_SYNC_BYTES = 8 << 20
SLICE_BYTES = 1 << 20
"""How much is read before the follower looks after its leader again."""


class Fetching:
    """One segment on its way. `good_bytes`: so far the damaged one can be read."""

    def __init__(self, store: LocalStore, name: SegmentName, *, good_bytes: int) -> None:
        self.name = name
        self._store = store
        self._good_bytes = good_bytes
        self._files = {
            name.file: f"{name.file}.fetched.tmp",
            name.index: f"{name.index}.fetched.tmp",
        }
        self._sizes = dict.fromkeys(self._files, 0)
        self._unsynced = 0
        for each in self._files.values():
            (store.folder / each).unlink(missing_ok=True)

    def write(self, data: Data) -> None:
        """Write the next piece. Raises MalformedError, DiskFullError and StorageError."""
        name = self.name
        if (data.sequence, data.base_lsn) != (name.sequence, name.base_lsn):
            raise MalformedError(f"the leader sent segment {data.sequence} in place of {name.file}")
        file = name.index if data.index else name.file
        if data.offset != self._sizes[file]:
            raise MalformedError(f"the leader sent byte {data.offset} of {file} out of order")
        path = self._store.folder / self._files[file]
        self._unsynced += len(data.content)
        try:
            with private.create_file(path) if data.offset == 0 else path.open("ab") as opened:
                write_all(opened.fileno(), [cast("bytes", data.content)])
                if self._unsynced >= _SYNC_BYTES:
                    # In parts: the last one shall not keep acknowledgements waiting.
                    os.fdatasync(opened.fileno())
                    self._unsynced = 0
        except OSError as error:
            raise_translated(error, f"cannot write {path.name}")
        self._sizes[file] += len(data.content)

    def check(self, fetched: Fetched) -> Iterator[None]:
        """Read what has come, a piece at a time. Raises CorruptError if it does not fit."""
        name, new = self.name, cast("Store", _Renamed(self._store, self._files))
        if fetched.size != self._sizes[name.file]:
            raise CorruptError(f"{name.file}: {fetched.size} bytes were announced, "
                               f"{self._sizes[name.file]} have come")  # fmt: skip
        yield from Reading(new, name, header_after(self._store, name)).slices(SLICE_BYTES)
        self._check_before(new)
        old_bytes = self._store.size(name.file)
        if fetched.size < old_bytes and fetched.size > self._good_bytes:
            raise CorruptError(f"{name.file} has {old_bytes} bytes here, the leader's fewer")
        for at in range(0, self._good_bytes, SLICE_BYTES):
            size = min(SLICE_BYTES, self._good_bytes - at)
            if new.read(name.file, at, size) != self._store.read(name.file, at, size):
                raise CorruptError(f"{name.file} differs from the leader's before its damage")
            yield
        if not index_is_whole(new, name):
            raise CorruptError(f"{name.index}: the leader's has damaged rows")

    def _check_before(self, new: Store) -> None:
        """The header follows that of the segment before, where that can be read."""
        header = read_header(new, self.name)[0]
        for each in list_segments(self._store):
            if each.sequence == self.name.sequence - 1:
                with contextlib.suppress(MalformedError):
                    before = read_header(self._store, each)[0]
                    ahead = (before.epoch, before.base) > (header.epoch, header.base)
                    if ahead or before.log_id != header.log_id:
                        raise CorruptError(f"{self.name.file} does not follow {each.file}")

    def install(self) -> None:
        """Replace the damaged files. Durable when it returns."""
        folder = self._store.folder
        try:
            for file, temporary in self._files.items():
                if not self._sizes[file]:
                    (folder / file).unlink(missing_ok=True)
                    continue
                with (folder / temporary).open("rb") as opened:
                    os.fsync(opened.fileno())
                (folder / temporary).rename(folder / file)
            sync_folder(folder)
        except OSError as error:
            raise_translated(error, f"cannot replace {self.name.file}")

    def drop(self) -> None:
        """Remove what has come."""
        for each in self._files.values():
            (self._store.folder / each).unlink(missing_ok=True)


class _Renamed:
    """The files of a store that exist under other names yet, for reading."""

    def __init__(self, store: LocalStore, names: dict[str, str]) -> None:
        self._store = store
        self._names = names

    def read(self, name: str, offset: int, length: int) -> bytes:
        return self._store.read(self._names[name], offset, length)

    def size(self, name: str) -> int:
        return self._store.size(self._names[name])
