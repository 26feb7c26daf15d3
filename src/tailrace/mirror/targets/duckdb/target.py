"""A table in a DuckDB file. Only one process can open the file, so it is closed when idle.

The table has no index: a batch finds its keys by a scan of the key's columns, which is fast in
DuckDB's columnar storage.
"""

# ruff: noqa: S608 - names are quoted by tailrace.mirror.targets.sql, values are parameters

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import duckdb
import pyarrow as pa

from tailrace.backoff import Backoff
from tailrace.change import Op
from tailrace.errors import ConfigError, PoisonedError, StorageError
from tailrace.mirror.layout import Alteration, Layout
from tailrace.mirror.targets.duckdb.rows import (
    arrow_table,
    as_plain,
    cast,
    declaration,
    plain_rows,
    row_match,
)
from tailrace.mirror.targets.failures import (
    missing_row,
    other_writer,
    table_exists,
    unidentified_row,
)
from tailrace.mirror.targets.file_lock import FileLock
from tailrace.mirror.targets.sql import name_list, quote
from tailrace.mirror.targets.target import STATES, StoredMirror
from tailrace.mirror.targets.values import plain, transpose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tailrace.client import Change
    from tailrace.client.names import Table
    from tailrace.mirror.layout import Column
    from tailrace.mirror.net import Effect, Key
    from tailrace.snapshot.job import Form

_LOADING = "temp._tailrace_loading"
_BATCH = "_tailrace_batch"
_INDEX = "_tailrace_at"
_MAX_LOCKED_S = 60.0
_CREATING = threading.Lock()
"""Of two threads that create the same table, DuckDB refuses one."""
_IN_USE = ("lock", "handle conflict")
"""What DuckDB says while another process has the file open, or another thread closes it."""


class Duckdb:
    """A table in a file. The schema public is DuckDB's default schema, `main`."""

    form: ClassVar[Form] = "rows"

    def __init__(
        self, path: Path, table: Table, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._clock = clock
        self._schema = "main" if table.schema == "public" else table.schema
        self._name = f"{self._schema}.{table.name}"
        self._table = f"{quote(self._schema)}.{quote(table.name)}"
        self._schema_and_table = self._schema, table.name
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._in_transaction = False
        self._stored: StoredMirror | None = None
        self._layout = Layout(columns=(), key=())
        self._lock = FileLock(path)

    @property
    def _db(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """Open the file, after waiting for other processes, or threads of this one, to close it."""
        backoff = Backoff(first_s=0.05, max_s=0.2, clock=self._clock)
        deadline = self._clock() + _MAX_LOCKED_S
        while True:
            try:
                return duckdb.connect(str(self._path))
            except duckdb.OperationalError as error:
                in_use = any(words in str(error) for words in _IN_USE)
                if not in_use or self._clock() > deadline:
                    raise ConfigError(
                        f"cannot open {self._path}: {error}",
                        hint="Check the folder and its permissions, and that no other process "
                        "keeps the file open.",
                    ) from error
            time.sleep(backoff.next_s())

    def open(self) -> StoredMirror | None:
        """Connect and read the stored state."""
        self.close()
        with self._translated_errors():
            with _CREATING:
                self._db.execute(
                    f"CREATE TABLE IF NOT EXISTS {STATES}"
                    " (name VARCHAR, state VARCHAR NOT NULL, layout VARCHAR NOT NULL)"
                )
            row = self._db.execute(
                f"SELECT state, layout FROM {STATES} WHERE name = ?",
                [self._name],
            ).fetchone()
            exists = self._db.execute(
                "SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
                [*self._schema_and_table],
            ).fetchone()
        self._stored = StoredMirror(state=row[0], layout=Layout.load(row[1])) if row else None
        if self._stored is not None:
            self._layout = self._stored.layout
        elif exists is not None:
            raise table_exists(str(self._path), self._name)
        return self._stored

    def begin(self, layout: Layout) -> None:
        """Begin a bootstrap, into a temporary table if the table exists."""
        self.rollback()
        self._layout = layout
        columns = ", ".join(declaration(column) for column in layout.columns)
        with self._translated_errors():
            self._begin_transaction()
            if self._stored is None:
                self._db.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(self._schema)}")
                self._db.execute(f"CREATE TABLE {self._table} ({columns})")
            else:
                self._db.execute(f"CREATE OR REPLACE TEMP TABLE _tailrace_loading ({columns})")

    def convert(self, columns: Sequence[list[Any]]) -> pa.Table:
        """Rows of the snapshot as an Arrow table."""
        pairs = zip(self._layout.columns, columns, strict=True)
        values = [plain(column.kind, column_values) for column, column_values in pairs]
        return arrow_table(self._layout.columns, values)

    def load(self, rows: pa.Table) -> None:
        """Load rows of the snapshot."""
        with self._translated_errors():
            self._insert(self._table if self._stored is None else _LOADING, rows)

    def _insert(self, table: str, rows: pa.Table) -> None:
        columns = self._layout.columns
        with self._batch(rows):
            casts = ", ".join(cast(column, quote(column.name)) for column in columns)
            names = name_list(self._layout.names)
            self._db.execute(f"INSERT INTO {table} ({names}) SELECT {casts} FROM {_BATCH}")

    @contextlib.contextmanager
    def _batch(self, rows: pa.Table) -> Iterator[None]:
        """An Arrow table under the name `_BATCH` in SQL, until the block ends."""
        self._db.register(_BATCH, rows)
        try:
            yield
        finally:
            self._db.unregister(_BATCH)

    def finish(self, state: str) -> None:
        """Replace the table with the loaded rows, and commit."""
        if self._stored is not None:
            with self._translated_errors():
                self._db.execute(f"CREATE OR REPLACE TABLE {self._table} AS FROM {_LOADING}")
                self._db.execute(f"DROP TABLE {_LOADING}")
        self.commit(state)

    def alter(self, layout: Layout) -> None:
        """Add and drop columns, so that the table has those of a layout."""
        change = Alteration.between(self._layout, layout)
        with self._translated_errors():
            self._begin_transaction()
            for name in change.dropped:
                self._db.execute(f"ALTER TABLE {self._table} DROP COLUMN {quote(name)}")
            for column in change.added:
                self._db.execute(f"ALTER TABLE {self._table} ADD COLUMN {declaration(column)}")
        self._layout = layout

    def apply(self, effect: Effect) -> None:
        """Apply the net effect of changes: delete all their keys, then insert the new rows."""
        layout = self._layout
        with self._translated_errors():
            self._begin_transaction()
            # First: the rows that moves and patches read are deleted below.
            partial = [*effect.moves, *effect.patches]
            rows = plain_rows(layout, effect.rows) + self._completed(partial)
            if effect.truncated:
                self._db.execute(f"DELETE FROM {self._table}")
            else:
                keys = [dict(zip(layout.key, key, strict=True)) for key in effect.removed]
                self._delete([*plain_rows(layout, keys), *rows])
            if rows:
                self._insert(self._table, self._arrow(rows))

    def _arrow(self, rows: Sequence[dict[str, Any]]) -> pa.Table:
        return arrow_table(self._layout.columns, transpose(rows, self._layout.names))

    def _delete(self, rows: Sequence[dict[str, Any]]) -> None:
        """Delete the rows with these keys."""
        columns = self._layout.only(self._layout.key)
        if rows:
            values = transpose(rows, [column.name for column in columns])
            with self._batch(arrow_table(columns, values)):
                self._db.execute(
                    f"DELETE FROM {self._table} t USING {_BATCH} b WHERE {row_match(columns)}"
                )

    def _completed(self, rows: Sequence[tuple[Key, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Rows with some columns, completed with the other columns of the rows `base`.

        Rows that lack the same columns are completed by one query.
        """
        by_missing: dict[tuple[Column, ...], list[tuple[Key, dict[str, Any]]]] = {}
        for base, row in rows:
            missing = tuple(column for column in self._layout.columns if column.name not in row)
            by_missing.setdefault(missing, []).append((base, row))
        completed: list[dict[str, Any]] = []
        for missing, group in by_missing.items():
            values = self._select([base for base, _ in group], missing)
            if len(values) != len(group):
                raise missing_row(self._name, group[0][0])
            partial = plain_rows(self._layout, [row for _, row in group])
            names = [column.name for column in missing]
            completed += [
                partial[index] | dict(zip(names, rest, strict=True)) for index, *rest in values
            ]
        return completed

    def _select(self, bases: Sequence[Key], missing: Sequence[Column]) -> list[tuple[Any, ...]]:
        """The index in `bases` and the missing columns of every row that exists."""
        layout = self._layout
        keys = plain_rows(layout, [dict(zip(layout.key, base, strict=True)) for base in bases])
        columns = layout.only(layout.key)
        values = transpose(keys, [column.name for column in columns])
        selected = ", ".join(as_plain(column) for column in missing)
        indexes = pa.array(range(len(bases)))
        with self._batch(arrow_table(columns, values).append_column(_INDEX, indexes)):
            return self._db.execute(
                f"SELECT {_INDEX}, {selected} FROM {self._table} t JOIN {_BATCH} b"
                f" ON {row_match(columns)}"
            ).fetchall()

    def replay(self, changes: Sequence[Change]) -> None:
        """Apply changes of a table without a key, one after another."""
        with self._translated_errors():
            self._begin_transaction()
            for change in changes:
                self._replay_one(change)

    def _replay_one(self, change: Change) -> None:
        layout = self._layout
        match change.op:
            case Op.INSERT | Op.READ:
                self._insert(self._table, self._arrow(plain_rows(layout, [change.data])))
            case Op.UPDATE:
                if change.old is None:
                    raise unidentified_row(self._name, change)
                self._delete_one_row(change, change.old)
                row = plain_rows(layout, [change.old | change.data])
                self._insert(self._table, self._arrow(row))
            case Op.DELETE:
                self._delete_one_row(change, change.data)
            case Op.TRUNCATE:
                self._db.execute(f"DELETE FROM {self._table}")
            case Op.MESSAGE:
                pass

    def _delete_one_row(self, change: Change, old: dict[str, Any]) -> None:
        """Delete one of the rows that are equal to the old row."""
        columns = self._layout.only(old)
        [row] = plain_rows(self._layout, [old])
        with self._batch(arrow_table(columns, [[row[column.name]] for column in columns])):
            equal = row_match(columns, "IS NOT DISTINCT FROM")
            deleted = self._db.execute(
                f"DELETE FROM {self._table} WHERE rowid = (SELECT min(t.rowid)"
                f" FROM {self._table} t, {_BATCH} b WHERE {equal}) RETURNING 1"
            ).fetchall()
        if len(deleted) != 1:
            raise unidentified_row(self._name, change)

    def commit(self, state: str) -> None:
        """Commit the changes since the last commit, with the state after them.

        The old state is compared to detect a second mirror of the table.
        """
        before = self._stored.state if self._stored is not None else None
        with self._translated_errors():
            self._begin_transaction()
            row = self._db.execute(
                f"DELETE FROM {STATES} WHERE name = ? RETURNING state",
                [self._name],
            ).fetchone()
            if before != (row[0] if row else None):
                raise other_writer(str(self._path), self._name)
            self._db.execute(
                f"INSERT INTO {STATES} VALUES (?, ?, ?)",
                [self._name, state, self._layout.dump()],
            )
            self._db.commit()
        self._in_transaction = False
        self._lock.release()
        self._stored = StoredMirror(state=state, layout=self._layout)

    def _begin_transaction(self) -> None:
        if not self._in_transaction:
            self._lock.acquire()
            self._db.begin()
            self._in_transaction = True

    def rollback(self) -> None:
        """Discard the changes since the last commit."""
        if self._in_transaction:
            self._in_transaction = False
            # After some errors DuckDB has no transaction left to roll back.
            with contextlib.suppress(duckdb.Error):
                self._db.rollback()
        self._lock.release()
        if self._stored is not None:
            self._layout = self._stored.layout

    def idle(self) -> None:
        """Close the file, so that other processes can open it."""
        if not self._in_transaction:
            self.close()

    def close(self) -> None:
        """Close the file. Discards what is not committed."""
        connection, self._connection = self._connection, None
        self._in_transaction = False
        if connection is not None:
            connection.close()
        self._lock.release()

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except duckdb.ConversionException as error:
            raise PoisonedError(
                f"DuckDB cannot store a value: {str(error).splitlines()[0]}",
                hint="docs/guides/mirror.md has the table of types. SQLite and PostgreSQL store "
                "all values.",
            ) from error
        except duckdb.Error as error:
            raise StorageError(
                f"cannot write to {self._path}: {str(error).splitlines()[0]}",
                hint="Check the disk, and that no other process writes to the file.",
            ) from error
