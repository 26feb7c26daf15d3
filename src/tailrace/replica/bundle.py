"""The small state of a leader as bundles: what its pipelines need to continue on another machine.

A bundle is a tar archive with everything that the data folder has of one pipeline: its checkpoint,
parked messages, backfills, what its sink notes, and what operators want of it. One more has what
the pipelines share. Archives are small and sent whole.

A pipeline runs while its bundle is made. What a bundle holds must be what a crash could have left:

1. The checkpoint is read first. All that it implies is written before it: a parked message before
   the commit of its batch, a page before the record of its backfill.
2. Files are read before the folders beside them, and both before databases, which are read in one
   transaction: rows go from files to a database, and are in both for a moment.
3. Then the checkpoint is read again. If a batch was planned, closed or committed meanwhile, what
   the first reading implied may already be removed: all of it is read again.
"""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
import tarfile
import tempfile
import time
import weakref
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar

from crc32c import crc32c

from tailrace.checkpoint import batches_of
from tailrace.log.format import mark as marks
from tailrace.log.retention import pin_files
from tailrace.log.segments import Segments
from tailrace.open_batch import WRITTEN
from tailrace.replica.small_state import (
    CHECKPOINTS,
    CONTROL,
    FOLDERS,
    PINS,
    SHARED,
    SHARED_FOLDERS,
    bundle_of,
    control_files,
    pipeline_of,
)
from tailrace.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.log.format.mark import Mark
    from tailrace.log.store import LocalStore

_ATTEMPTS = 5
_IN_MEMORY_BYTES = 64 << 10
"""Files up to this size are read at once: some are overwritten in place. Larger ones never are."""
_CHUNK = 1 << 20
_DATABASE = ".db"
_PASSING = (".tmp", "-wal", "-shm", "-journal", ".lock", ".sock", WRITTEN)
"""Ends of names that mean nothing on another machine."""


@dataclass(slots=True, kw_only=True, weakref_slot=True, eq=False)
class Bundle:
    """An archive. Every position in it is at or before `mark`, and `visible` for readers.

    Several senders may read it. Its file has no name, and is closed when the last of them is done.
    """

    name: str
    size: int
    crc: int
    mark: Mark
    visible: Mark | None
    as_of_ns: int
    """What was written before this time of the monotonic clock is in it, as far as it still is."""
    file: IO[bytes] = field(repr=False)

    def __post_init__(self) -> None:
        weakref.finalize(self, self.file.close)

    def pieces(self) -> Iterator[bytes]:
        """The content. Several threads may read it."""
        for offset in range(0, self.size, _CHUNK):
            yield os.pread(self.file.fileno(), min(_CHUNK, self.size - offset), offset)


class _Database(SqliteFile):
    content = "the state"
    schema: ClassVar[str] = ""


_Part = tuple[str, bytes | IO[bytes] | _Database]
"""Its name in the archive, and its content."""
Signature = tuple[tuple[str, int, int], ...]
"""Names, sizes and times of files."""


class Bundler:
    """Makes the bundles of a data folder."""

    def __init__(self, data: Path, store: LocalStore) -> None:
        self._data = data
        self._store = store

    def names(self) -> list[str]:
        """The bundles that there are."""
        found: set[str] = set()
        for folder in FOLDERS:
            with contextlib.suppress(FileNotFoundError):
                found.update(entry.name for entry in os.scandir(self._data / folder))
        return [SHARED, *map(bundle_of, sorted(found))]

    def signature(self, name: str) -> Signature:
        """Changes when the content of a bundle may have changed."""
        found = []
        for path in self._paths(name, passing=("-wal",)):
            with contextlib.suppress(FileNotFoundError):
                state = path.stat()
                found.append((str(path), state.st_size, state.st_mtime_ns))
        return tuple(found)

    def make(self, name: str) -> Bundle | None:
        """A bundle; None if its pipeline commits too fast for now."""
        checkpoint = self._data / CHECKPOINTS / pipeline_of(name)
        for _ in range(_ATTEMPTS):
            before, as_of_ns = batches_of(checkpoint), time.monotonic_ns()
            with ExitStack() as stack:
                parts = self._read(name, stack)
                if batches_of(checkpoint) == before:
                    return self._pack(name, parts, as_of_ns)
        return None

    def _paths(self, name: str, *, passing: tuple[str, ...] = ()) -> list[Path]:
        """The files of a bundle, in the order in which they have to be read."""
        if name == SHARED:
            found = [path for each in SHARED_FOLDERS for path in _walk(self._data / each)]
            found += [self._store.folder / each for each in pin_files(self._store)]
        else:
            pipeline = pipeline_of(name)
            found = [path for each in FOLDERS for path in _walk(self._data / each / pipeline)]
            found += [self._data / CONTROL / each for each in control_files(pipeline)]
        skipped = tuple(each for each in _PASSING if each not in passing)
        return [path for path in found if not path.name.endswith(skipped)]

    def _read(self, name: str, stack: ExitStack) -> list[_Part]:
        parts: list[_Part] = []
        databases = []
        for path in self._paths(name):
            if path.suffix == _DATABASE:
                databases.append(path)
                continue
            with contextlib.suppress(FileNotFoundError):
                file = path.open("rb", buffering=0)
                if os.fstat(file.fileno()).st_size > _IN_MEMORY_BYTES:
                    parts.append((self._inside(path), stack.enter_context(file)))
                else:
                    with file:
                        parts.append((self._inside(path), file.read()))
        for path in databases:
            if path.stat().st_size:
                database = stack.enter_context(_Database(path))
                with database.translated():
                    # A transaction that has read sees nothing of later ones.
                    database.connection.execute("BEGIN")
                    database.connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                parts.append((self._inside(path), database))
        return parts

    def _inside(self, path: Path) -> str:
        """The name of a file in an archive."""
        if path.parent == self._store.folder:
            return f"{PINS}/{path.name}"
        return path.relative_to(self._data).as_posix()

    def _pack(self, name: str, parts: list[_Part], as_of_ns: int) -> Bundle:
        mark = Segments(self._store).durable_end()
        visible = marks.peek(self._store, marks.VISIBLE)
        archive = tempfile.TemporaryFile(dir=self._data)  # noqa: SIM115 - the bundle owns it
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for inside, content in parts:
                if isinstance(content, bytes):
                    _add(tar, inside, io.BytesIO(content), len(content))
                elif isinstance(content, _Database):
                    self._add_database(tar, inside, content)
                else:
                    _add(tar, inside, content, os.fstat(content.fileno()).st_size)
        archive.flush()
        size, crc = archive.tell(), 0
        archive.seek(0)
        while piece := archive.read(_CHUNK):
            crc = crc32c(piece, crc)
        return Bundle(
            name=name, size=size, crc=crc, mark=mark, visible=visible, as_of_ns=as_of_ns,
            file=archive,
        )  # fmt: skip

    def _add_database(self, tar: tarfile.TarFile, inside: str, database: _Database) -> None:
        with tempfile.TemporaryDirectory(dir=self._data) as folder:
            path = Path(folder) / "copy"
            with database.translated(), contextlib.closing(sqlite3.connect(path)) as copy:
                database.connection.backup(copy)
            with path.open("rb") as file:
                _add(tar, inside, file, path.stat().st_size)


def _walk(folder: Path) -> Iterator[Path]:
    """The files of a folder, each before the folders beside it."""
    try:
        # A folder is not listed in one moment. A file that implies another was written after it, so
        # a second list has the other.
        found = {entry.name: entry for _ in range(2) for entry in os.scandir(folder)}
    except (FileNotFoundError, NotADirectoryError):
        return
    entries = [found[name] for name in sorted(found) if not name.startswith(".")]
    for entry in entries:
        if entry.is_file(follow_symlinks=False):
            yield Path(entry.path)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _add(tar: tarfile.TarFile, inside: str, content: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(inside)
    entry.size, entry.mode = size, 0o600
    tar.addfile(entry, content)
