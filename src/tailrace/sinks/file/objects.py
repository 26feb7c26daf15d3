"""An object store, or any other file system of fsspec, as a store.

A file is uploaded under its temporary name and then copied to its final one, both at once for
readers. Files are uploaded a few at a time. A file system that can rename (SFTP, HDFS) renames.

`create` relies on a conditional write (S3: `If-None-Match`), which fences a sink of an abandoned
worker. Where the store or its library has none, the name is looked up before it is written.
"""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec

from tailrace.sinks.file.failures import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tailrace.sinks.file.store import Move

_AT_A_TIME = 4


class ObjectStore:
    """A folder of an fsspec file system. The texts of errors do not contain its options."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._url = url
        self._options = options
        with self._attempt("be opened"):
            # An instance of its own: a shared one may remember listings.
            own = {"use_listings_cache": False, "skip_instance_cache": True}
            self._files, root = fsspec.url_to_fs(url, **own | options)
        self._root = root.rstrip("/")
        self._spooled: tempfile.TemporaryDirectory[str] | None = None
        self._pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="files")
        # Such a file system is an object store: it has no folders to create and no rename.
        self._objects = bool(self._files.async_impl)
        self._renames = type(self._files).mv is not fsspec.AbstractFileSystem.mv
        self._exclusive = "mode" in inspect.signature(self._pipe).parameters

    @property
    def _pipe(self) -> Callable[..., Any]:
        pipe: Callable[..., Any] = getattr(self._files, "_pipe_file", self._files.pipe_file)
        return pipe

    def names(self, folder: str) -> list[str]:
        """All files in a folder and below."""
        with self._attempt("be listed"):
            self._files.invalidate_cache()
            try:
                found = self._files.find(f"{self._root}/{folder}")
            except FileNotFoundError:
                if not self._objects:
                    return []
                raise
        return [str(name)[len(self._root) + 1 :] for name in found]

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with self._attempt(f"be read: {name}", passes=FileNotFoundError):
            content: bytes = self._files.cat_file(self._path(name))
        return content

    def create(self, name: str, data: bytes) -> None:
        """A conditional write, or as much of it as the file system offers."""
        path = self._path(name)
        with self._attempt(f"be written: {name}", passes=FileExistsError):
            if not self._exclusive and self._files.exists(path):
                raise FileExistsError(name)
            self._make_parent(path)
            if self._exclusive:
                self._files.pipe_file(path, data, mode="create")
            else:
                self._files.pipe_file(path, data)

    def spool(self, name: str) -> Path:
        """A file in a temporary folder of this machine."""
        if self._spooled is None:
            with translated("no temporary folder"):
                self._spooled = tempfile.TemporaryDirectory(prefix="tailrace-files-")
        return Path(self._spooled.name) / name.rpartition("/")[2]

    def stage(self, names: Sequence[str]) -> None:
        """Upload files."""
        self._each(self._upload, names)

    def _upload(self, name: str) -> None:
        local, path = self.spool(name), self._path(name)
        with self._attempt(f"be written: {name}"):
            self._make_parent(path)
            self._files.put_file(str(local), path)
        local.unlink()

    def publish(self, moves: Sequence[Move]) -> None:
        """Copy files to their final names, and delete the temporary ones."""
        self._each(self._move, moves)

    def _move(self, move: Move) -> None:
        temporary, final = self._path(move.temporary), self._path(move.final)
        with self._attempt(f"be written: {move.final}"):
            self._make_parent(final)
            try:
                if self._renames:
                    self._files.mv(temporary, final)
                else:
                    self._files.cp_file(temporary, final)
                    self._files.rm_file(temporary)
            except FileNotFoundError:
                # Another sink has moved it.
                if self._files.exists(temporary):
                    raise

    def remove(self, names: Iterable[str]) -> None:
        """Delete files."""
        self._each(self._remove, names)

    def _remove(self, name: str) -> None:
        with self._attempt(f"delete: {name}"), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def discard(self, names: Iterable[str]) -> None:
        """Delete spooled files."""
        for name in names:
            with contextlib.suppress(OSError):
                self.spool(name).unlink(missing_ok=True)

    def check(self) -> None:
        """The bucket must be there."""
        self.names("_tailrace")

    def close(self) -> None:
        """Delete spooled files."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        spooled, self._spooled = self._spooled, None
        if spooled is not None:
            with contextlib.suppress(OSError):
                spooled.cleanup()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_parent(self, path: str) -> None:
        # Object stores have no folders, and some create a missing bucket instead.
        if not self._objects:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _each(self, action: Callable[[Any], None], items: Iterable[Any]) -> None:
        """Do something with every item, a few at a time; then raise the first error."""
        done = [self._pool.submit(action, item) for item in items]
        errors = [error for each in done if (error := each.exception()) is not None]
        if errors:
            raise errors[0]

    @contextlib.contextmanager
    def _attempt(self, what: str, *, passes: type[Exception] | None = None) -> Iterator[None]:
        with translated(f"{self._url} cannot {what}", options=self._options, passes=passes):
            yield
