"""The SQLite file of a pipeline's parked messages.

The planner of the pipeline's query is the only writer (`store`). Commands and the HTTP endpoints
read at the same time (`listing`). Payloads have a table of their own, so that lists read little.

A parked message is identified by the history of its position and its first position. `wanted` is
the order that it is to be retried for. Groups are hashes (`tailrace.sinks.groups`), as the signed
integers of SQLite.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from tailrace import private
from tailrace.errors import CorruptError, DiskFullError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_VERSION = 1
_SCHEMA = """
CREATE TABLE parked (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  history TEXT NOT NULL, first_lsn INTEGER NOT NULL, first_ordinal INTEGER NOT NULL,
  destination TEXT NOT NULL, id TEXT NOT NULL, key BLOB, former BLOB,
  scope INTEGER NOT NULL, own_group INTEGER NOT NULL, former_group INTEGER NOT NULL,
  whole INTEGER NOT NULL, bytes INTEGER NOT NULL, committed_at INTEGER NOT NULL,
  held INTEGER NOT NULL, attempts INTEGER NOT NULL,
  parked_at INTEGER NOT NULL, last_at INTEGER NOT NULL,
  first_code TEXT NOT NULL, first_reason TEXT NOT NULL,
  code TEXT NOT NULL, reason TEXT NOT NULL, hint TEXT NOT NULL, response TEXT NOT NULL,
  wanted TEXT,
  UNIQUE (history, first_lsn, first_ordinal)
);
CREATE TABLE payloads (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE INDEX by_destination ON parked (destination, seq);
CREATE INDEX by_code ON parked (code, seq);
CREATE INDEX by_id ON parked (id);
CREATE INDEX by_key ON parked (key, seq);
CREATE INDEX by_own_group ON parked (own_group);
CREATE INDEX by_former_group ON parked (former_group);
CREATE INDEX whole_tables ON parked (scope) WHERE whole;
CREATE INDEX by_wanted ON parked (history, first_lsn, first_ordinal) WHERE wanted IS NOT NULL;
CREATE TABLE totals (messages INTEGER NOT NULL, held INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0, 0);
CREATE TRIGGER removed AFTER DELETE ON parked BEGIN
  UPDATE totals SET messages = messages - 1, held = held - OLD.held, bytes = bytes - OLD.bytes;
  DELETE FROM payloads WHERE seq = OLD.seq;
END;
CREATE TRIGGER changed AFTER UPDATE OF held ON parked BEGIN
  UPDATE totals SET held = held + NEW.held - OLD.held;
END;
CREATE TABLE orders (
  id TEXT PRIMARY KEY, action TEXT NOT NULL, matched INTEGER NOT NULL,
  delivered INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0
);
"""
_READ_TIMEOUT_S = 30


class Database:
    """An open file. In a `with` block it is closed at the end."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self._path = path
        if write:
            private.create_folder(path.parent)
            # SQLite creates its other files with the mode of this one.
            if not path.exists():
                private.create_file(path).close()
        with self.translated():
            uri = f"{path.absolute().as_uri()}?mode={'rw' if write else 'ro'}"
            self.connection = sqlite3.connect(
                uri, uri=True, timeout=_READ_TIMEOUT_S, isolation_level=None
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
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        (version,) = execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise StorageError(
                f"{self._path} has version {version}, this release reads version {_VERSION}",
                hint="Another release of Tailrace wrote it: use that release.",
            )
        if not version:
            self.connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;"
            )

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of SQLite as those of a disk."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            what = f"the parked messages in {self._path}: {error}"
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
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
