"""DuckDB: a file. One process at a time may have it open, so it is let go of between writes.

There is no index: a batch finds its keys by a scan of the key's columns, which DuckDB is made for.
"""

# ruff: noqa: S608 - names are quoted by tailrace.mirror.targets.sql, values are parameters

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, ClassVar

import duckdb
import pyarrow as pa

from tailrace.change import Op
from tailrace.errors import ConfigError, PoisonedError, StorageError
from tailrace.mirror.layout import Alteration, Kind, Layout
from tailrace.mirror.targets.failures import absent, fenced, occupied, without_key
from tailrace.mirror.targets.file_lock import FileLock
from tailrace.mirror.targets.sql import listed, quoted
from tailrace.mirror.targets.target import STATES, StoredMirror
from tailrace.mirror.targets.values import arrow, plain, transposed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tailrace.client import Change
    from tailrace.client.names import Table
    from tailrace.mirror.layout import Column
    from tailrace.mirror.net import Effect, Key
    from tailrace.snapshot.job import Form

_TYPES = {
    "boolean": "BOOLEAN",
    "smallint": "SMALLINT",
    "integer": "INTEGER",
    "bigint": "BIGINT",
    "oid": "BIGINT",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "bytea": "BLOB",
    "uuid": "UUID",
    "date": "DATE",
    "timestamp without time zone": "TIMESTAMP",
    "timestamp with time zone": "TIMESTAMPTZ",
}
_DATED = frozenset({"DATE", "TIMESTAMP", "TIMESTAMPTZ"})
_LOADING = "temp._tailrace_loading"
_BATCH = "_tailrace_batch"
_PATIENCE_S = 60.0
_PAUSE_S = 0.05


class Duckdb:
    """A table in a file. The schema public is DuckDB's own, `main`."""

    form: ClassVar[Form] = "rows"

    def __init__(self, path: Path, table: Table) -> None:
        self._path = path
        self._schema = "main" if table.schema == "public" else table.schema
        self._name = f"{self._schema}.{table.name}"
        self._table = f"{quoted(self._schema)}.{quoted(table.name)}"
        self._where = self._schema, table.name
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._begun = False
        self._kept: StoredMirror | None = None
        self._layout = Layout(columns=(), key=())
        self._turn = FileLock(path)

    @property
    def _db(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = self._connected()
        return self._connection

    def _connected(self) -> duckdb.DuckDBPyConnection:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return duckdb.connect(str(self._path))
            except duckdb.IOException as error:
                if "lock" not in str(error) or time.monotonic() > deadline:
                    raise ConfigError(
                        f"cannot open {self._path}: {error}",
                        hint="Check the folder and its permissions, and that no other program "
                        "keeps the file open.",
                    ) from error
            time.sleep(_PAUSE_S)

    def open(self) -> StoredMirror | None:
        """Connect, and say what is there."""
        self.close()
        with self._failures():
            self._db.execute(
                f"CREATE TABLE IF NOT EXISTS {STATES}"
                " (name VARCHAR, state VARCHAR NOT NULL, layout VARCHAR NOT NULL)"
            )
            found = self._db.execute(
                f"SELECT state, layout FROM {STATES} WHERE name = ?",
                [self._name],
            ).fetchone()
            exists = self._db.execute(
                "SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
                [*self._where],
            ).fetchone()
        self._kept = StoredMirror(state=found[0], layout=Layout.load(found[1])) if found else None
        if self._kept is not None:
            self._layout = self._kept.layout
        elif exists is not None:
            raise occupied(str(self._path), self._name)
        return self._kept

    def begin(self, layout: Layout) -> None:
        """Begin a bootstrap: beside the table, if there is one."""
        self.rollback()
        self._layout = layout
        columns = ", ".join(_declared(column) for column in layout.columns)
        with self._failures():
            self._transaction()
            if self._kept is None:
                self._db.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(self._schema)}")
                self._db.execute(f"CREATE TABLE {self._table} ({columns})")
            else:
                self._db.execute(f"CREATE OR REPLACE TEMP TABLE _tailrace_loading ({columns})")

    def shaped(self, columns: Sequence[list[Any]]) -> pa.Table:
        """Rows of the snapshot as a table of Arrow."""
        given = zip(self._layout.columns, columns, strict=True)
        values = [plain(column.kind, each) for column, each in given]
        return _table(self._layout.columns, values)

    def load(self, rows: pa.Table) -> None:
        """Rows of the snapshot."""
        with self._failures():
            self._insert(self._table if self._kept is None else _LOADING, rows)

    def _insert(self, table: str, rows: pa.Table) -> None:
        columns = self._layout.columns
        with self._batch(rows):
            casts = ", ".join(_cast(column, quoted(column.name)) for column in columns)
            names = listed(self._layout.names)
            self._db.execute(f"INSERT INTO {table} ({names}) SELECT {casts} FROM {_BATCH}")

    @contextlib.contextmanager
    def _batch(self, rows: pa.Table) -> Iterator[None]:
        """Rows as a table that SQL can name."""
        self._db.register(_BATCH, rows)
        try:
            yield
        finally:
            self._db.unregister(_BATCH)

    def finish(self, state: str) -> None:
        """Put what was loaded in the place of what is there, and commit."""
        if self._kept is not None:
            with self._failures():
                self._db.execute(f"CREATE OR REPLACE TABLE {self._table} AS FROM {_LOADING}")
                self._db.execute(f"DROP TABLE {_LOADING}")
        self.commit(state)

    def alter(self, layout: Layout) -> None:
        """Give the table the columns of a layout."""
        change = Alteration.between(self._layout, layout)
        with self._failures():
            self._transaction()
            for name in change.dropped:
                self._db.execute(f"ALTER TABLE {self._table} DROP COLUMN {quoted(name)}")
            for column in change.added:
                self._db.execute(f"ALTER TABLE {self._table} ADD COLUMN {_declared(column)}")
        self._layout = layout

    def apply(self, effect: Effect) -> None:
        """Do what changes come to: all keys out, the rows that are left in."""
        layout = self._layout
        with self._failures():
            self._transaction()
            rows = _plain(layout, effect.rows) + self._filled([*effect.moves, *effect.patches])
            if effect.truncated:
                self._db.execute(f"DELETE FROM {self._table}")
            else:
                keys = [dict(zip(layout.key, key, strict=True)) for key in effect.removed]
                self._remove([*_plain(layout, keys), *rows])
            if rows:
                self._insert(self._table, self._rows(rows))

    def _rows(self, rows: Sequence[dict[str, Any]]) -> pa.Table:
        return _table(self._layout.columns, transposed(rows, self._layout.names))

    def _remove(self, rows: Sequence[dict[str, Any]]) -> None:
        columns = self._layout.only(self._layout.key)
        if rows:
            values = transposed(rows, [column.name for column in columns])
            with self._batch(_table(columns, values)):
                self._db.execute(
                    f"DELETE FROM {self._table} t USING {_BATCH} b WHERE {_matched(columns)}"
                )

    def _filled(self, rows: Sequence[tuple[Key, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Rows with the columns that only the target has, from where they were before."""
        layout = self._layout
        alike: dict[tuple[Column, ...], list[tuple[Key, dict[str, Any]]]] = {}
        for base, row in rows:
            missing = tuple(column for column in layout.columns if column.name not in row)
            alike.setdefault(missing, []).append((base, row))
        found: list[dict[str, Any]] = []
        for missing, group in alike.items():
            keys = _plain(layout, [dict(zip(layout.key, base, strict=True)) for base, _ in group])
            columns = layout.only(layout.key)
            values = transposed(keys, [column.name for column in columns])
            kept = ", ".join(_read(column) for column in missing)
            numbers = pa.array(range(len(group)))
            with self._batch(_table(columns, values).append_column(_AT, numbers)):
                there = self._db.execute(
                    f"SELECT {_AT}, {kept} FROM {self._table} t JOIN {_BATCH} b"
                    f" ON {_matched(columns)}"
                ).fetchall()
            if len(there) != len(group):
                raise absent(self._name, group[0][0])
            given = _plain(layout, [row for _, row in group])
            names = [column.name for column in missing]
            found += [given[at] | dict(zip(names, more, strict=True)) for at, *more in there]
        return found

    def replay(self, changes: Sequence[Change]) -> None:
        """Do changes of a table without a key, one after another."""
        with self._failures():
            self._transaction()
            for change in changes:
                self._step(change)

    def _step(self, change: Change) -> None:
        layout = self._layout
        match change.op:
            case Op.INSERT | Op.READ:
                self._insert(self._table, self._rows(_plain(layout, [change.data])))
            case Op.UPDATE:
                if change.old is None:
                    raise without_key(self._name, change)
                self._one(change, change.old)
                row = _plain(layout, [change.old | change.data])
                self._insert(self._table, self._rows(row))
            case Op.DELETE:
                self._one(change, change.data)
            case Op.TRUNCATE:
                self._db.execute(f"DELETE FROM {self._table}")
            case Op.MESSAGE:
                pass

    def _one(self, change: Change, old: dict[str, Any]) -> None:
        """Remove one of the rows that look like this."""
        columns = self._layout.only(old)
        [row] = _plain(self._layout, [old])
        with self._batch(_table(columns, [[row[column.name]] for column in columns])):
            alike = _matched(columns, "IS NOT DISTINCT FROM")
            done = self._db.execute(
                f"DELETE FROM {self._table} WHERE rowid = (SELECT min(t.rowid)"
                f" FROM {self._table} t, {_BATCH} b WHERE {alike}) RETURNING 1"
            ).fetchall()
        if len(done) != 1:
            raise without_key(self._name, change)

    def commit(self, state: str) -> None:
        """Keep what was done, and the place behind it."""
        before = self._kept.state if self._kept is not None else None
        with self._failures():
            self._transaction()
            found = self._db.execute(
                f"DELETE FROM {STATES} WHERE name = ? RETURNING state",
                [self._name],
            ).fetchone()
            if before != (found[0] if found else None):
                raise fenced(str(self._path), self._name)
            self._db.execute(
                f"INSERT INTO {STATES} VALUES (?, ?, ?)",
                [self._name, state, self._layout.dump()],
            )
            self._db.commit()
        self._begun = False
        self._turn.give()
        self._kept = StoredMirror(state=state, layout=self._layout)

    def _transaction(self) -> None:
        if not self._begun:
            self._turn.take()
            self._db.begin()
            self._begun = True

    def rollback(self) -> None:
        """Forget what was done since the last commit."""
        if self._begun:
            self._begun = False
            with contextlib.suppress(duckdb.Error):
                self._db.rollback()
        self._turn.give()
        if self._kept is not None:
            self._layout = self._kept.layout

    def rest(self) -> None:
        """Let others open the file."""
        if not self._begun:
            self.close()

    def close(self) -> None:
        """Let go of the file; what is not committed is gone."""
        connection, self._connection = self._connection, None
        self._begun = False
        if connection is not None:
            connection.close()
        self._turn.give()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except duckdb.ConversionException as error:
            raise PoisonedError(
                f"DuckDB cannot hold a value: {str(error).splitlines()[0]}",
                hint="See the table of types in the guide. SQLite and PostgreSQL hold all values.",
            ) from error
        except duckdb.Error as error:
            raise StorageError(
                f"{self._path}: {str(error).splitlines()[0]}",
                hint="Check the disk, and who else writes to the file.",
            ) from error


_AT = "_tailrace_at"


def _type(column: Column) -> str:
    return _TYPES.get(column.data_type, "VARCHAR")


def _declared(column: Column) -> str:
    return f"{quoted(column.name)} {_type(column)}"


def _cast(column: Column, name: str) -> str:
    return f"CAST({name} AS {_type(column)})"


def _read(column: Column) -> str:
    """A column in the form in which it is written."""
    name = f"t.{quoted(column.name)}"
    return f"CAST({name} AS VARCHAR)" if column.kind is Kind.TEXT else name


def _matched(columns: Sequence[Column], operator: str = "=") -> str:
    return " AND ".join(
        f"t.{quoted(column.name)} {operator} {_cast(column, f'b.{quoted(column.name)}')}"
        for column in columns
    )


def _plain(layout: Layout, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows, all with the same columns, with values in the form in which they are written."""
    if not rows:
        return []
    columns = layout.only(rows[0])
    values = [plain(column.kind, [row[column.name] for row in rows]) for column in columns]
    names = [column.name for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _table(columns: Sequence[Column], values: Sequence[list[Any]]) -> pa.Table:
    """Plain values as a table of Arrow."""
    given = zip(columns, values, strict=True)
    return pa.table({column.name: _array(column, each) for column, each in given})


def _array(column: Column, values: list[Any]) -> pa.Array:
    if _type(column) in _DATED:
        values = [_before_christ(v) if v is not None and v.endswith(" BC") else v for v in values]
    return arrow(column.kind, values)


def _before_christ(text: str) -> str:
    """DuckDB has the era behind the date.

    >>> _before_christ("0044-03-15 12:00:00 BC")
    '0044-03-15 (BC) 12:00:00'
    """
    date, _, time_ = text.removesuffix(" BC").partition(" ")
    return f"{date} (BC) {time_}".rstrip()
