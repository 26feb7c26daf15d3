"""SQLite: a file. Readers of it are not disturbed: it is in WAL mode."""

# ruff: noqa: S608 - names are quoted by tailrace.mirror.targets.sql, values are parameters

from __future__ import annotations

import contextlib
import math
import sqlite3
from typing import TYPE_CHECKING, Any, ClassVar

from tailrace.change import Op
from tailrace.errors import ConfigError, StorageError
from tailrace.mirror.layout import Alteration, Kind, Layout
from tailrace.mirror.targets.failures import absent, fenced, occupied, without_key
from tailrace.mirror.targets.file_lock import FileLock
from tailrace.mirror.targets.sql import assigned, each, listed, quoted
from tailrace.mirror.targets.target import STATES, StoredMirror
from tailrace.mirror.targets.values import plain, transposed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tailrace.client import Change
    from tailrace.client.names import Table
    from tailrace.mirror.layout import Column
    from tailrace.mirror.net import Effect, Key
    from tailrace.snapshot.job import Form

_BUSY_S = 30.0
_TYPES = {
    Kind.BOOL: "BOOLEAN",
    Kind.INTEGER: "INTEGER",
    Kind.FLOAT: "REAL",
    Kind.BYTES: "BLOB",
    Kind.JSON: "TEXT",
    Kind.TEXT: "TEXT",
}
_LOADING = quoted("_tailrace_loading")


class Sqlite:
    """A table in a file. Tables outside of the schema public are named `schema.table`."""

    form: ClassVar[Form] = "rows"

    def __init__(self, path: Path, table: Table) -> None:
        self._path = path
        self._name = table.name if table.schema == "public" else f"{table.schema}.{table.name}"
        self._table = quoted(self._name)
        self._connection: sqlite3.Connection | None = None
        self._kept: StoredMirror | None = None
        self._layout = Layout(columns=(), key=())
        self._into = self._table
        self._turn = FileLock(path)

    @property
    def _db(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def open(self) -> StoredMirror | None:
        """Connect, and say what is there."""
        self.close()
        try:
            self._connection = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._kept = self._prepared()
        except sqlite3.Error as error:
            raise ConfigError(
                f"cannot open {self._path}: {error}",
                hint="Check the folder and its permissions. sqlite:///local.db is relative to the "
                "current folder, sqlite:////var/lib/local.db is not.",
            ) from error
        if self._kept is not None:
            self._layout = self._kept.layout
        elif self._exists():
            raise occupied(str(self._path), self._name)
        return self._kept

    def _prepared(self) -> StoredMirror | None:
        self._db.execute("PRAGMA journal_mode = WAL")
        # The place is in the transaction: after a power cut the last ones are done again.
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(
            f"CREATE TABLE IF NOT EXISTS {STATES}"
            " (name TEXT PRIMARY KEY, state TEXT NOT NULL, layout TEXT NOT NULL)"
        )
        found = self._db.execute(
            f"SELECT state, layout FROM {STATES} WHERE name = ?",
            [self._name],
        ).fetchone()
        return StoredMirror(state=found[0], layout=Layout.load(found[1])) if found else None

    def _exists(self) -> bool:
        sql = "SELECT 1 FROM sqlite_schema WHERE type IN ('table', 'view') AND name = ?"
        return self._db.execute(sql, [self._name]).fetchone() is not None

    def begin(self, layout: Layout) -> None:
        """Begin a bootstrap: beside the table, if there is one that somebody may be reading."""
        self.rollback()
        self._layout = layout
        self._into = self._table if self._kept is None else _LOADING
        with self._failures():
            self._transaction()
            columns = ", ".join(_declared(column, layout) for column in layout.columns)
            self._db.execute(f"CREATE TABLE {self._into} ({columns})")

    def shaped(self, columns: Sequence[list[Any]]) -> list[list[Any]]:
        """Rows of the snapshot, as SQLite keeps them."""
        return _stored(self._layout.columns, columns)

    def load(self, rows: list[list[Any]]) -> None:
        """Rows of the snapshot."""
        with self._failures():
            self._insert(self._into, rows)

    def _insert(self, table: str, values: Sequence[list[Any]], conflict: str = "") -> None:
        marks = ", ".join("?" for _ in values)
        self._db.executemany(
            f"INSERT INTO {table} ({listed(self._layout.names)}) VALUES ({marks}){conflict}",
            zip(*values, strict=True),
        )

    def finish(self, state: str) -> None:
        """Index what was loaded, or put it in the place of what is there, and commit."""
        with self._failures():
            if self._kept is None:
                self._index()
            elif _alike(self._kept.layout, self._layout):
                names = listed(self._layout.names)
                self._alter(self._kept.layout, self._layout)
                self._db.execute(f"DELETE FROM {self._table}")
                self._db.execute(
                    f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {_LOADING}"
                )
                self._db.execute(f"DROP TABLE {_LOADING}")
            else:
                self._db.execute(f"DROP TABLE {self._table}")
                self._db.execute(f"ALTER TABLE {_LOADING} RENAME TO {self._table}")
                self._index()
        self.commit(state)

    def _index(self) -> None:
        key = self._layout.key
        if key and not _aliased(self._layout):
            index = quoted(f"{self._name} key")
            self._db.execute(f"CREATE UNIQUE INDEX {index} ON {self._table} ({listed(key)})")

    def alter(self, layout: Layout) -> None:
        """Give the table the columns of a layout."""
        with self._failures():
            self._transaction()
            self._alter(self._layout, layout)
        self._layout = layout

    def _alter(self, before: Layout, after: Layout) -> None:
        change = Alteration.between(before, after)
        for name in change.dropped:
            self._db.execute(f"ALTER TABLE {self._table} DROP COLUMN {quoted(name)}")
        for column in change.added:
            self._db.execute(f"ALTER TABLE {self._table} ADD COLUMN {_declared(column, after)}")

    def apply(self, effect: Effect) -> None:
        """Do what changes come to."""
        layout = self._layout
        with self._failures():
            self._transaction()
            moved = [self._moved(base, row) for base, row in effect.moves]
            if effect.truncated:
                self._db.execute(f"DELETE FROM {self._table}")
            self._db.executemany(
                f"DELETE FROM {self._table} WHERE {each(layout.key, '{} = ?')}",
                [self._key(key) for key in effect.removed],
            )
            for key, row in effect.patches:
                self._patch(key, row)
            values = _stored(layout.columns, transposed(effect.rows, layout.names))
            for name, column in zip(layout.names, values, strict=True):
                column += [row[name] for row in moved]
            self._insert(self._table, values, self._upsert())

    def _upsert(self) -> str:
        key = self._layout.key
        others = [name for name in self._layout.names if name not in key]
        action = f"UPDATE SET {assigned(others, 'excluded')}" if others else "NOTHING"
        return f" ON CONFLICT ({listed(key)}) DO {action}"

    def _key(self, key: Key) -> list[Any]:
        given = dict(zip(self._layout.key, key, strict=True))
        found = _row(self._layout, given)
        return [found[name] for name in self._layout.key]

    def _moved(self, base: Key, row: dict[str, Any]) -> dict[str, Any]:
        """A row that gets another key, with the columns that only the target has."""
        missing = [name for name in self._layout.names if name not in row]
        found = self._db.execute(
            f"SELECT {listed(missing)} FROM {self._table} WHERE {each(self._layout.key, '{} = ?')}",
            self._key(base),
        ).fetchone()
        if found is None:
            raise absent(self._name, base)
        return _row(self._layout, row) | dict(zip(missing, found, strict=True))

    def _patch(self, key: Key, row: dict[str, Any]) -> None:
        values = _row(self._layout, row)
        done = self._db.execute(
            f"UPDATE {self._table} SET {each(values, '{} = ?', ', ')}"
            f" WHERE {each(self._layout.key, '{} = ?')}",
            [*values.values(), *self._key(key)],
        )
        if done.rowcount != 1:
            raise absent(self._name, key)

    def replay(self, changes: Sequence[Change]) -> None:
        """Do changes of a table without a key, one after another."""
        with self._failures():
            self._transaction()
            for change in changes:
                self._step(change)

    def _step(self, change: Change) -> None:
        names = self._layout.names
        match change.op:
            case Op.INSERT | Op.READ:
                row = _row(self._layout, change.data)
                self._insert(self._table, [[row[name]] for name in names])
            case Op.UPDATE:
                if change.old is None:
                    raise without_key(self._name, change)
                row = _row(self._layout, change.old | change.data)
                self._one(
                    change,
                    change.old,
                    f"UPDATE {self._table} SET {each(row, '{} = ?', ', ')}",
                    [*row.values()],
                )
            case Op.DELETE:
                self._one(change, change.data, f"DELETE FROM {self._table}", [])
            case Op.TRUNCATE:
                self._db.execute(f"DELETE FROM {self._table}")
            case Op.MESSAGE:
                pass

    def _one(self, change: Change, old: dict[str, Any], action: str, values: list[Any]) -> None:
        """Do something to one of the rows that look like this."""
        row = _row(self._layout, old)
        done = self._db.execute(
            f"{action} WHERE rowid = (SELECT rowid FROM {self._table}"
            f" WHERE {each(row, '{} IS ?')} LIMIT 1)",
            [*values, *row.values()],
        )
        if done.rowcount != 1:
            raise without_key(self._name, change)

    def commit(self, state: str) -> None:
        """Keep what was done, and the place behind it."""
        with self._failures():
            self._transaction()
            if self._kept is None:
                done = self._db.execute(
                    f"INSERT OR IGNORE INTO {STATES} VALUES (?, ?, ?)",
                    [self._name, state, self._layout.dump()],
                )
            else:
                done = self._db.execute(
                    f"UPDATE {STATES} SET state = ?, layout = ? WHERE name = ? AND state = ?",
                    [state, self._layout.dump(), self._name, self._kept.state],
                )
            if done.rowcount != 1:
                raise fenced(str(self._path), self._name)
            self._db.execute("COMMIT")
        self._turn.give()
        self._kept = StoredMirror(state=state, layout=self._layout)

    def _transaction(self) -> None:
        if not self._db.in_transaction:
            self._turn.take()
            self._db.execute("BEGIN IMMEDIATE")

    def rollback(self) -> None:
        """Forget what was done since the last commit."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._turn.give()
        if self._kept is not None:
            self._layout = self._kept.layout

    def rest(self) -> None:
        """Readers are never in the way."""

    def close(self) -> None:
        """Let go of the file; what is not committed is gone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._turn.give()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(
                f"{self._path}: {error}", hint="Check the disk, and who else writes to the file."
            ) from error


def _declared(column: Column, layout: Layout) -> str:
    alias = _aliased(layout) and column.name == layout.key[0]
    return f"{quoted(column.name)} {_TYPES[column.kind]}{' PRIMARY KEY' if alias else ''}"


def _aliased(layout: Layout) -> bool:
    """Whether the key is SQLite's own number of a row: the quickest there is."""
    return len(layout.key) == 1 and layout.only(layout.key)[0].kind is Kind.INTEGER


def _alike(before: Layout, after: Layout) -> bool:
    """Whether a table can be altered from one to the other: types and keys cannot."""
    return before.key == after.key and not Alteration.between(before, after).retyped


def _stored(columns: Sequence[Column], values: Sequence[list[Any]]) -> list[list[Any]]:
    """Columns as SQLite keeps them: it takes NaN for NULL, so NaN is text."""
    found = []
    for column, given in zip(columns, values, strict=True):
        each_ = plain(column.kind, given)
        if column.kind is Kind.FLOAT:
            each_ = ["NaN" if isinstance(v, float) and math.isnan(v) else v for v in each_]
        found.append(each_)
    return found


def _row(layout: Layout, row: dict[str, Any]) -> dict[str, Any]:
    """Some columns of one row as SQLite keeps them."""
    columns = layout.only(row)
    values = _stored(columns, [[row[column.name]] for column in columns])
    return {column.name: value for column, [value] in zip(columns, values, strict=True)}
