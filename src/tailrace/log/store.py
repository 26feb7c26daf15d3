"""The store of a log's files: the one interface between the log and a disk.

A store is a flat folder of named files. Another medium is another class that passes the same
contract suite (`tests/contract/test_store.py`):

* `write_atomic` leaves the old file or the new one, never a mixture, and returns when durable.
* `AppendFile.write` may leave any prefix on disk when it fails. `sync` returns when everything
  written is durable. A failed `sync` is final: the file may not be used again. A file that
  `append_to` created may be missing after a power cut, synced or not: only `write_atomic` makes
  names durable.
* `rewrite` does not rely on the page cache. After a failed sync the cached file looks whole and a
  second sync succeeds, and the disk may still lack the data.
* `overwrite` replaces a small record in place without waiting for the disk; readers check its CRC.
* `lock` excludes all other processes and ends with its holder, also when that is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING, NoReturn, Protocol

from tailrace import private
from tailrace.errors import DiskFullError, LogFencedError, StorageError
from tailrace.log.watch import Watch
from tailrace.observe import failpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

_OUT_OF_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TEMPORARY = ".tmp"
_OLD_S = 3600.0
"""After this, nobody is still writing a temporary file."""
_COPY_BYTES = 1 << 20


class AppendFile(Protocol):
    """A file open for appending."""

    size: int

    def write(self, buffers: Sequence[bytes]) -> None:
        """Append all buffers."""

    def sync(self) -> None:
        """Return when everything written is durable."""

    def close(self) -> None:
        """Close the file; does not sync."""


class Store(Protocol):
    """A flat folder of named files."""

    def names(self) -> list[str]:
        """All files, sorted; temporary ones are not listed."""

    def size(self, name: str) -> int:
        """Bytes in the file; raises FileNotFoundError."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`, fewer at the end; raises FileNotFoundError."""

    def append_to(self, name: str) -> AppendFile:
        """Open a file for appending; creates it if missing."""

    def write_atomic(self, name: str, data: bytes) -> None:
        """Create or replace a file, durably."""

    def overwrite(self, name: str, data: bytes) -> None:
        """Replace the first bytes of a file, not yet durably; raises FileNotFoundError."""

    def watch(self, name: str) -> Watch:
        """A watch that `overwrite` of this file wakes."""

    def truncate(self, name: str, size: int) -> None:
        """Cut a file, durably; raises FileNotFoundError."""

    def rewrite(self, name: str, size: int) -> None:
        """Write the first `size` bytes of a file to the disk again, durably, and cut the rest."""

    def remove(self, name: str) -> None:
        """Delete a file, durably; a missing one is fine."""

    def lock(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Hold an exclusive lock; raises LogFencedError at once when another process holds it."""


def raise_translated(error: OSError, what: str) -> NoReturn:
    """Raise an error of the operating system as DiskFullError or StorageError."""
    if error.errno in _OUT_OF_SPACE:
        raise DiskFullError(f"{what}: {error.strerror}") from error
    raise StorageError(f"{what}: {error.strerror or error}") from error


@contextlib.contextmanager
def _translated(what: str, *, may_be_missing: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if may_be_missing and isinstance(error, FileNotFoundError):
            raise
        raise_translated(error, what)


class LocalStore:
    """A folder on a local disk, or on a shared one with POSIX semantics."""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder = folder
        if create:
            with _translated(f"cannot create the folder {folder}"):
                private.create_folder(folder)

    def __repr__(self) -> str:
        return f"LocalStore({str(self.folder)!r})"

    def names(self) -> list[str]:
        """All files, sorted."""
        with _translated(f"cannot list {self.folder}"), contextlib.suppress(FileNotFoundError):
            return sorted(p.name for p in self.folder.iterdir() if p.suffix != _TEMPORARY)
        return []

    def size(self, name: str) -> int:
        """Bytes in the file."""
        with _translated(f"cannot read {name}", may_be_missing=True):
            return (self.folder / name).stat().st_size

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`."""
        path = self.folder / name
        with _translated(f"cannot read {name}", may_be_missing=True), path.open("rb", 0) as file:
            return os.pread(file.fileno(), length, offset)

    def append_to(self, name: str) -> LocalFile:
        """Open for appending."""
        with _translated(f"cannot open {name}"):
            return LocalFile(self.folder / name)

    def write_atomic(self, name: str, data: bytes) -> None:
        """Temporary file, fsync, rename, fsync of the folder."""
        with _translated(f"cannot write {name}"):
            self._replace(name, [data])

    def rewrite(self, name: str, size: int) -> None:
        """Copy the file and rename the copy over it."""
        path = self.folder / name
        with _translated(f"cannot copy {name}", may_be_missing=True), path.open("rb", 0) as file:
            chunks = range(0, size, _COPY_BYTES)
            parts = (os.pread(file.fileno(), min(_COPY_BYTES, size - at), at) for at in chunks)
            self._replace(name, parts)

    def _replace(self, name: str, parts: Iterable[bytes]) -> None:
        # Several processes and threads may replace one file at the same time, such as a pin.
        writer = f"{os.getpid()}-{threading.get_native_id()}"
        temporary = self.folder / f"{name}.{writer}{_TEMPORARY}"
        failpoint.hit("store.create")
        try:
            with private.create_file(temporary, buffering=0) as file:
                for part in parts:
                    write_all(file.fileno(), [part])
                os.fsync(file.fileno())
            failpoint.hit("store.before-rename")
            temporary.rename(self.folder / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        failpoint.hit("store.after-rename")
        sync_folder(self.folder)

    def overwrite(self, name: str, data: bytes) -> None:
        """One pwrite at the start of the file."""
        path = self.folder / name
        with _translated(f"cannot write {name}", may_be_missing=True), path.open("r+b", 0) as file:
            os.pwrite(file.fileno(), data, 0)

    def watch(self, name: str) -> Watch:
        """A watch of the kernel, for writes on this machine."""
        return Watch(self.folder / name)

    def truncate(self, name: str, size: int) -> None:
        """Cut and fsync."""
        path = self.folder / name
        with _translated(f"cannot cut {name}", may_be_missing=True), path.open("r+b", 0) as file:
            os.ftruncate(file.fileno(), size)
            os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        """Unlink and fsync the folder."""
        with _translated(f"cannot remove {name}"):
            (self.folder / name).unlink(missing_ok=True)
            sync_folder(self.folder)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """`flock`: the kernel releases it when the process ends, also when it is killed."""
        with contextlib.ExitStack() as opened:
            with _translated(f"cannot lock {name}"):
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                handle = os.open(self.folder / name, flags, private.FILE_MODE)
                file = opened.enter_context(os.fdopen(handle, "wb"))
                try:
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise LogFencedError(
                        f"another process is appending to {self.folder}"
                    ) from error
                self._remove_temporary_files()
            yield

    def _remove_temporary_files(self) -> None:
        """Remove temporary files that killed processes left.

        Segments and indexes have one writer. Readers write pins at any time: those that are not old
        are left alone.
        """
        for path in self.folder.glob(f"*{_TEMPORARY}"):
            with contextlib.suppress(FileNotFoundError):
                if path.name[0].isdigit() or time.time() - path.stat().st_mtime > _OLD_S:
                    path.unlink()


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = _find_sync_file_range()
"""Of Linux: reports nothing that a later fdatasync would not report."""


class LocalFile:
    """A local file open for appending, through an unbuffered descriptor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, private.FILE_MODE)
        self.size = os.fstat(self._fd).st_size

    def write(self, buffers: Sequence[bytes]) -> None:
        """Append with `writev`."""
        with _translated(f"cannot write {self._path.name}"):
            failpoint.hit("log.before-write")
            if failpoint.armed("log.torn-write"):
                joined = b"".join(buffers)
                write_all(self._fd, [joined[: len(joined) // 2]])
                failpoint.hit("log.torn-write")
            self.size += write_all(self._fd, buffers)

    def sync(self) -> None:
        """`fdatasync`: the data and the length, not the times."""
        with _translated(f"cannot sync {self._path.name}"):
            failpoint.hit("log.before-sync")
            os.fdatasync(self._fd)
            failpoint.hit("log.after-sync")

    def begin_sync(self, offset: int) -> None:
        """Have the kernel begin to write what follows an offset; a later `sync` waits for less."""
        if _sync_file_range is not None:
            _sync_file_range(self._fd, offset, self.size - offset, _SYNC_FILE_RANGE_WRITE)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def replace_record(store: Store, name: str, record: bytes) -> None:
    """Replace a small file, durably; on a full disk in place. All its records have one size."""
    try:
        store.write_atomic(name, record)
    except DiskFullError as error:
        try:
            store.overwrite(name, record)
        except FileNotFoundError:
            raise error from None
        overwritten = store.append_to(name)
        overwritten.sync()
        overwritten.close()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(fd: int, buffers: Sequence[bytes]) -> int:
    """`writev` until everything is written; the kernel may write less at a time."""
    total = sum(map(len, buffers))
    written = os.writev(fd, buffers)
    if written < total:
        rest = memoryview(b"".join(buffers))
        while written < total:
            written += os.write(fd, rest[written:])
    return total
