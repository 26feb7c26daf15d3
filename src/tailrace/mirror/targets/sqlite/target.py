"""A table in an SQLite file. The file is in WAL mode: readers never wait for the mirror."""

# ruff: noqa: S608 - names are quoted by tailrace.mirror.targets.sql, values are parameters

from __future__ import annotations

import contextlib
import sqlite3
import time
from typing import TYPE_CHECKING, Any, ClassVar

from tailrace.backoff import Backoff
from tailrace.change import Op
from tailrace.errors import ConfigError, StorageError
from tailrace.mirror.layout import Alteration, Layout
from tailrace.mirror.targets.failures import (
    missing_row,
    other_writer,
    table_exists,
    unidentified_row,
)
from tailrace.mirror.targets.file_lock import FileLock
from tailrace.mirror.targets.sql import assignments, join_names, name_list, quote
from tailrace.mirror.targets.sqlite.rows import (
    can_alter,
    declaration,
    has_rowid_key,
    stored_columns,
    stored_row,
)
from tailrace.mirror.targets.target import STATES, StoredMirror
from tailrace.mirror.targets.values import transpose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tailrace.client import Change
    from tailrace.client.names import Table
    from tailrace.mirror.net import Effect, Key
    from tailrace.snapshot.job import Form

_BUSY_TIMEOUT_S = 30.0
_LOADING = quote("_tailrace_loading")


class Sqlite:
    """A table in a file. Outside the schema public its name is `schema.table`."""

    form: ClassVar[Form] = "rows"

    def __init__(
        self, path: Path, table: Table, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._clock = clock
        self._name = table.name if table.schema == "public" else f"{table.schema}.{table.name}"
        self._table = quote(self._name)
        self._connection: sqlite3.Connection | None = None
        self._stored: StoredMirror | None = None
        self._layout = Layout(columns=(), key=())
        self._loading = self._table
        self._lock = FileLock(path)

    @property
    def _db(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def open(self) -> StoredMirror | None:
        """Connect and read the stored state."""
        self.close()
        try:
            self._connection = sqlite3.connect(
                self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._stored = self._read_state()
        except sqlite3.Error as error:
            raise ConfigError(
                f"cannot open {self._path}: {error}",
                hint="Check the folder and its permissions. sqlite:///local.db is relative to the "
                "current folder, sqlite:////var/lib/local.db is absolute.",
            ) from error
        if self._stored is not None:
            self._layout = self._stored.layout
        elif self._exists():
            raise table_exists(str(self._path), self._name)
        return self._stored

    def _read_state(self) -> StoredMirror | None:
        self._use_wal()
        # The state is in the transaction: after a power failure, the last ones are replayed.
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(
            f"CREATE TABLE IF NOT EXISTS {STATES}"
            " (name TEXT PRIMARY KEY, state TEXT NOT NULL, layout TEXT NOT NULL)"
        )
        row = self._db.execute(
            f"SELECT state, layout FROM {STATES} WHERE name = ?",
            [self._name],
        ).fetchone()
        return StoredMirror(state=row[0], layout=Layout.load(row[1])) if row else None

    def _use_wal(self) -> None:
        """Switch a new file to WAL mode, which several mirrors may do at once.

        SQLite begins with a read lock. Of two connections that hold one, neither gets the write
        lock, and one is refused at once, without waiting for the timeout.
        """
        backoff = Backoff(first_s=0.01, max_s=0.2, clock=self._clock)
        deadline = self._clock() + _BUSY_TIMEOUT_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or self._clock() > deadline:
                    raise
            else:
                return
            time.sleep(backoff.next_s())

    def _exists(self) -> bool:
        sql = "SELECT 1 FROM sqlite_schema WHERE type IN ('table', 'view') AND name = ?"
        return self._db.execute(sql, [self._name]).fetchone() is not None

    def begin(self, layout: Layout) -> None:
        """Begin a bootstrap, into a second table if the first one exists and may have readers."""
        self.rollback()
        self._layout = layout
        self._loading = self._table if self._stored is None else _LOADING
        with self._translated_errors():
            self._begin_transaction()
            columns = ", ".join(declaration(column, layout) for column in layout.columns)
            self._db.execute(f"CREATE TABLE {self._loading} ({columns})")

    def convert(self, columns: Sequence[list[Any]]) -> list[list[Any]]:
        """Rows of the snapshot as SQLite stores them."""
        return stored_columns(self._layout.columns, columns)

    def load(self, rows: list[list[Any]]) -> None:
        """Load rows of the snapshot."""
        with self._translated_errors():
            self._insert(self._loading, rows)

    def _insert(self, table: str, values: Sequence[list[Any]], conflict: str = "") -> None:
        marks = ", ".join("?" for _ in values)
        self._db.executemany(
            f"INSERT INTO {table} ({name_list(self._layout.names)}) VALUES ({marks}){conflict}",
            zip(*values, strict=True),
        )

    def finish(self, state: str) -> None:
        """Index the loaded rows, or replace the old rows with them, and commit.

        A table that ALTER TABLE can change to the new layout keeps its indexes and triggers.
        """
        with self._translated_errors():
            if self._stored is None:
                self._create_index()
            elif can_alter(self._stored.layout, self._layout):
                names = name_list(self._layout.names)
                self._alter(self._stored.layout, self._layout)
                # SQLite deletes without visiting the rows if there is no WHERE and no trigger.
                self._db.execute(f"DELETE FROM {self._table}")
                self._db.execute(
                    f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {_LOADING}"
                )
                self._db.execute(f"DROP TABLE {_LOADING}")
            else:
                self._db.execute(f"DROP TABLE {self._table}")
                self._db.execute(f"ALTER TABLE {_LOADING} RENAME TO {self._table}")
                self._create_index()
        self.commit(state)

    def _create_index(self) -> None:
        key = self._layout.key
        if key and not has_rowid_key(self._layout):
            index = quote(f"{self._name} key")
            self._db.execute(f"CREATE UNIQUE INDEX {index} ON {self._table} ({name_list(key)})")

    def alter(self, layout: Layout) -> None:
        """Add and drop columns, so that the table has those of a layout."""
        with self._translated_errors():
            self._begin_transaction()
            self._alter(self._layout, layout)
        self._layout = layout

    def _alter(self, before: Layout, after: Layout) -> None:
        change = Alteration.between(before, after)
        for name in change.dropped:
            self._db.execute(f"ALTER TABLE {self._table} DROP COLUMN {quote(name)}")
        for column in change.added:
            self._db.execute(f"ALTER TABLE {self._table} ADD COLUMN {declaration(column, after)}")

    def apply(self, effect: Effect) -> None:
        """Apply the net effect of changes."""
        layout = self._layout
        with self._translated_errors():
            self._begin_transaction()
            # First: the rows that moves read may be deleted or overwritten below.
            moved = [self._moved_row(base, row) for base, row in effect.moves]
            if effect.truncated:
                self._db.execute(f"DELETE FROM {self._table}")
            self._db.executemany(
                f"DELETE FROM {self._table} WHERE {join_names(layout.key, '{} = ?')}",
                [self._stored_key(key) for key in effect.removed],
            )
            for key, row in effect.patches:
                self._patch(key, row)
            values = stored_columns(layout.columns, transpose(effect.rows, layout.names))
            for name, column in zip(layout.names, values, strict=True):
                column += [row[name] for row in moved]
            self._insert(self._table, values, self._on_conflict())

    def _on_conflict(self) -> str:
        key = self._layout.key
        others = [name for name in self._layout.names if name not in key]
        action = f"UPDATE SET {assignments(others, 'excluded')}" if others else "NOTHING"
        return f" ON CONFLICT ({name_list(key)}) DO {action}"

    def _stored_key(self, key: Key) -> list[Any]:
        columns = dict(zip(self._layout.key, key, strict=True))
        stored = stored_row(self._layout, columns)
        return [stored[name] for name in self._layout.key]

    def _moved_row(self, base: Key, row: dict[str, Any]) -> dict[str, Any]:
        """A row that gets another key, with the columns that only the target has."""
        missing = [name for name in self._layout.names if name not in row]
        values = self._db.execute(
            f"SELECT {name_list(missing)} FROM {self._table}"
            f" WHERE {join_names(self._layout.key, '{} = ?')}",
            self._stored_key(base),
        ).fetchone()
        if values is None:
            raise missing_row(self._name, base)
        return stored_row(self._layout, row) | dict(zip(missing, values, strict=True))

    def _patch(self, key: Key, row: dict[str, Any]) -> None:
        values = stored_row(self._layout, row)
        cursor = self._db.execute(
            f"UPDATE {self._table} SET {join_names(values, '{} = ?', ', ')}"
            f" WHERE {join_names(self._layout.key, '{} = ?')}",
            [*values.values(), *self._stored_key(key)],
        )
        if cursor.rowcount != 1:
            raise missing_row(self._name, key)

    def replay(self, changes: Sequence[Change]) -> None:
        """Apply changes of a table without a key, one after another."""
        with self._translated_errors():
            self._begin_transaction()
            for change in changes:
                self._replay_one(change)

    def _replay_one(self, change: Change) -> None:
        match change.op:
            case Op.INSERT | Op.READ:
                row = stored_row(self._layout, change.data)
                self._insert(self._table, [[row[name]] for name in self._layout.names])
            case Op.UPDATE:
                if change.old is None:
                    raise unidentified_row(self._name, change)
                row = stored_row(self._layout, change.old | change.data)
                update = f"UPDATE {self._table} SET {join_names(row, '{} = ?', ', ')}"
                self._change_one_row(change, change.old, update, [*row.values()])
            case Op.DELETE:
                self._change_one_row(change, change.data, f"DELETE FROM {self._table}", [])
            case Op.TRUNCATE:
                self._db.execute(f"DELETE FROM {self._table}")
            case Op.MESSAGE:
                pass

    def _change_one_row(
        self, change: Change, old: dict[str, Any], action: str, values: list[Any]
    ) -> None:
        """Run a statement on one of the rows that are equal to the old row."""
        row = stored_row(self._layout, old)
        cursor = self._db.execute(
            f"{action} WHERE rowid = (SELECT rowid FROM {self._table}"
            f" WHERE {join_names(row, '{} IS ?')} LIMIT 1)",
            [*values, *row.values()],
        )
        if cursor.rowcount != 1:
            raise unidentified_row(self._name, change)

    def commit(self, state: str) -> None:
        """Commit the changes since the last commit, with the state after them.

        The old state in the condition detects a second mirror of the table.
        """
        with self._translated_errors():
            self._begin_transaction()
            if self._stored is None:
                cursor = self._db.execute(
                    f"INSERT OR IGNORE INTO {STATES} VALUES (?, ?, ?)",
                    [self._name, state, self._layout.dump()],
                )
            else:
                cursor = self._db.execute(
                    f"UPDATE {STATES} SET state = ?, layout = ? WHERE name = ? AND state = ?",
                    [state, self._layout.dump(), self._name, self._stored.state],
                )
            if cursor.rowcount != 1:
                raise other_writer(str(self._path), self._name)
            self._db.execute("COMMIT")
        self._lock.release()
        self._stored = StoredMirror(state=state, layout=self._layout)

    def _begin_transaction(self) -> None:
        if not self._db.in_transaction:
            self._lock.acquire()
            # IMMEDIATE takes the write lock now: a deferred one may fail at the first write.
            self._db.execute("BEGIN IMMEDIATE")

    def rollback(self) -> None:
        """Discard the changes since the last commit."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._lock.release()
        if self._stored is not None:
            self._layout = self._stored.layout

    def idle(self) -> None:
        """Nothing to release: in WAL mode readers never wait."""

    def close(self) -> None:
        """Close the file. Discards what is not committed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._lock.release()

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(
                f"cannot write to {self._path}: {error}",
                hint="Check the disk, and that no other process writes to the file.",
            ) from error
