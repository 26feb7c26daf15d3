"""An SQLite file in WAL mode: one process writes at a time, others read meanwhile.

For components that keep more than a small JSON document (`tailrace.state_file`) in the data folder.
A commit is durable when it returns. The file is for its owner only.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Self

from tailrace import private
from tailrace.errors import CorruptError, DiskFullError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class SqliteFile:
    """An open file. In a `with` block it is closed at the end.

    A kind of file has a subclass, with its tables and the version of them.
    """

    content: ClassVar[str]
    """What the file holds, in errors: `the parked messages`."""
    schema: ClassVar[str]
    version: ClassVar[int] = 1
    upgrades: ClassVar[Mapping[int, str]] = {}
    """What the writer of a file with an older version does first: from each version to the next.
    What readers use is the same in these versions."""
    pragmas: ClassVar[tuple[str, ...]] = ()
    """Settings of a connection that writes."""
    lock_timeout_s: ClassVar[float] = 30.0
    """How long a statement waits for another process."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self.path = path
        if write:
            private.create_folder(path.parent)
            # SQLite creates its other files with the mode of this one.
            if not path.exists():
                private.create_file(path).close()
        with self.translated():
            uri = f"{path.absolute().as_uri()}?mode={'rw' if write else 'ro'}"
            # One thread at a time uses it, not always the same one.
            self.connection = sqlite3.connect(
                uri,
                uri=True,
                timeout=self.lock_timeout_s,
                isolation_level=None,
                check_same_thread=False,
            )
            if write:
                self._create()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def created(self) -> bool:
        """Whether the file has its tables."""
        with self.translated():
            return bool(self.connection.execute("PRAGMA user_version").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def _create(self) -> None:
        execute = self.connection.execute
        for pragma in ("journal_mode = WAL", "synchronous = FULL", *self.pragmas):
            execute(f"PRAGMA {pragma}")
        while (version := self._version()) != self.version:
            change, following = self.schema, self.version
            if version:
                change, following = self.upgrades[version], version + 1
            try:
                self.connection.executescript(
                    f"BEGIN IMMEDIATE; {change} PRAGMA user_version = {following}; COMMIT;"
                )
            except sqlite3.OperationalError:
                if self.connection.in_transaction:
                    execute("ROLLBACK")
                # Another process may have done it meanwhile.
                if self._version() == version:
                    raise

    def _version(self) -> int:
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, self.version, *self.upgrades):
            raise StorageError(
                f"{self.path} has version {version}, this release reads version {self.version}",
                hint="Another release of Tailrace wrote it: use that release.",
            )
        return int(version)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of SQLite as those of a disk."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            what = f"{self.content} in {self.path}: {error}"
            name = getattr(error, "sqlite_errorname", "")
            if name == "SQLITE_FULL":
                raise DiskFullError(what) from error
            if name in {"SQLITE_CORRUPT", "SQLITE_NOTADB"}:
                raise CorruptError(what, hint="Restore the file from a backup.") from error
            raise StorageError(what) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is durable at the end of the block."""
        with self.translated():
            self.begin()
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def begin(self) -> None:
        """Begin a transaction that writes."""
        self.connection.execute("BEGIN IMMEDIATE")


class SqliteReader(SqliteFile):
    """A file that is open for reading, or that was never written: a base beside a kind of file."""

    def __init__(self, path: Path) -> None:
        self.exists = path.exists() and path.stat().st_size > 0
        if self.exists:
            super().__init__(path)
            # The file is there before its tables are.
            self.exists = self.created
            if not self.exists:
                super().close()

    def close(self) -> None:
        """Close the file."""
        if self.exists:
            super().close()
