"""A local folder as a store: what returns survives a power cut.

A file that is complete was fsynced, then renamed, and the folder that has its name was fsynced. A
record is created with a link, which fails if the name exists. A shared file system needs the same
semantics: NFS has them.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tailrace.errors import SinkRefusedError
from tailrace.sinks.file.failures import translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tailrace.sinks.file.store import Move

_MODES = {"owner": 0o600, "group": 0o640, "all": 0o644}
TEMPORARY = ".tmp"


class LocalFolder:
    """A folder of this machine. `readable_by` is `owner`, `group` or `all`."""

    def __init__(self, root: Path, *, readable_by: str = "owner") -> None:
        self._root = root
        self._mode = _MODES[readable_by]
        # Who may read a file may also enter and list its folder.
        self._folder_mode = self._mode | 0o100 | (self._mode & 0o044) >> 2

    def names(self, folder: str) -> list[str]:
        """All files in a folder and below."""
        with self._attempt(f"list {folder}"):
            return [
                (Path(path) / name).relative_to(self._root).as_posix()
                for path, _, names in os.walk(self._root / folder, onerror=_unless_missing)
                for name in names
            ]

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with self._attempt(f"read {name}", passes=FileNotFoundError):
            return (self._root / name).read_bytes()

    def create(self, name: str, data: bytes) -> None:
        """A temporary file, fsync, and a link, which fails if there is such a file."""
        path = self._root / name
        temporary = path.with_name(f"{uuid.uuid4().hex}{TEMPORARY}")
        with self._attempt(f"create {name}", passes=FileExistsError):
            self._ensure(path.parent)
            try:
                with self._new(temporary) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            _sync(path.parent)

    def spool(self, name: str) -> Path:
        """Where the temporary file is: a rename needs the same file system."""
        path = self._root / name
        with self._attempt(f"create {name}"):
            self._ensure(path.parent)
            self._new(path).close()
        return path

    def stage(self, names: Sequence[str]) -> None:
        """Make files durable under their temporary names."""
        with self._attempt("write"):
            for name in names:
                _sync(self._root / name)
            for folder in {(self._root / name).parent for name in names}:
                _sync(folder)

    def publish(self, moves: Sequence[Move]) -> None:
        """Rename files, durably."""
        with self._attempt("move files"):
            for move in moves:
                self._rename(self._root / move.temporary, self._root / move.final)
            for folder in {(self._root / move.final).parent for move in moves}:
                _sync(folder)

    def _rename(self, temporary: Path, final: Path) -> None:
        self._ensure(final.parent)
        try:
            temporary.rename(final)
        except FileNotFoundError:
            # Another sink has moved it, unless the folder has just been deleted.
            if temporary.exists():
                raise

    def remove(self, names: Iterable[str]) -> None:
        """Delete files."""
        with self._attempt("delete files"):
            for name in names:
                (self._root / name).unlink(missing_ok=True)

    def discard(self, names: Iterable[str]) -> None:
        """Delete temporary files. What is left after an error is deleted by the next sink."""
        with contextlib.suppress(OSError):
            for name in names:
                (self._root / name).unlink(missing_ok=True)

    def check(self) -> None:
        """The folder must be writable, or its nearest parent that exists."""
        with self._attempt("look"):
            path = self._root
            while not path.exists() and path != path.parent:
                path = path.parent
            if not path.is_dir():
                raise SinkRefusedError(
                    f"{path} is not a folder", hint="Set `url` of the sink to a folder."
                )
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(f"the folder {path} is not writable")

    def close(self) -> None:
        """Nothing to release."""

    def _new(self, path: Path) -> BinaryIO:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
        # The mode is the user's choice, whatever the umask.
        os.fchmod(handle, self._mode)
        return os.fdopen(handle, "wb")

    def _ensure(self, folder: Path) -> None:
        """Create a folder and its parents, durably."""
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            # Another lane may create it at the same time.
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                path.chmod(self._folder_mode)
            _sync(path.parent)

    @contextlib.contextmanager
    def _attempt(self, what: str, *, passes: type[Exception] | None = None) -> Iterator[None]:
        with translated(f"cannot {what} in {self._root}", passes=passes):
            yield


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
