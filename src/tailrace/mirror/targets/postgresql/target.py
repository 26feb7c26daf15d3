"""A table in a PostgreSQL database, under its own name and with the source's own types.

All rows are loaded by COPY: those of a bootstrap into the table, those of changes into temporary
tables (`staging`).
"""

# ruff: noqa: S608 - names are quoted by tailrace.mirror.targets.sql, values are parameters

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg

from tailrace.mirror.layout import Alteration, Layout
from tailrace.mirror.targets.failures import missing_row, other_writer, table_exists
from tailrace.mirror.targets.postgresql.keyless import KeylessTable
from tailrace.mirror.targets.postgresql.session import Session
from tailrace.mirror.targets.postgresql.staging import BATCH, MOVES, StagingTables
from tailrace.mirror.targets.sql import assignments, name_list, quote
from tailrace.mirror.targets.target import STATES, StoredMirror
from tailrace.mirror.targets.values import transpose
from tailrace.postgres.connection import translate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.client import Change
    from tailrace.client.names import Table
    from tailrace.mirror.layout import Column
    from tailrace.mirror.net import Effect, Key
    from tailrace.snapshot.job import Form

    CopyRows = tuple[Sequence[str], memoryview | bytes]

_STATES = f"public.{STATES}"
_LOADING = "pg_temp._tailrace_loading"
_CREATE_STATES = f"""
CREATE TABLE IF NOT EXISTS {_STATES} (
    namespace text, name text, state text NOT NULL, layout text NOT NULL,
    PRIMARY KEY (namespace, name)
)
"""


class Postgresql:
    """A table in a database."""

    form: ClassVar[Form] = "copy"

    def __init__(self, dsn: str, table: Table) -> None:
        self._dsn = dsn
        self._namespace, self._name = table.schema, table.name
        self._table = f"{quote(table.schema)}.{quote(table.name)}"
        self._opened: tuple[Session, StagingTables] | None = None
        self._stored: StoredMirror | None = None
        self._layout = Layout(columns=(), key=())

    @property
    def _session(self) -> Session:
        assert self._opened is not None
        return self._opened[0]

    @property
    def _staging(self) -> StagingTables:
        assert self._opened is not None
        return self._opened[1]

    def open(self) -> StoredMirror | None:
        """Connect and read the stored state."""
        self.close()
        with self._translated_errors():
            session = Session(self._dsn)
            self._opened = session, StagingTables(session)
            session.prepare(_CREATE_STATES)
            row = session.run(
                f"SELECT state, layout FROM {_STATES} WHERE (namespace, name) = (%s, %s)",
                [self._namespace, self._name],
            ).fetchone()
            exists = session.run("SELECT to_regclass(%s)", [self._table]).fetchone()
            session.connection.commit()
        self._stored = StoredMirror(state=row[0], layout=Layout.load(row[1])) if row else None
        if self._stored is not None:
            self._layout = self._stored.layout
        elif exists and exists[0] is not None:
            raise table_exists(session.database, self._table)
        return self._stored

    def begin(self, layout: Layout) -> None:
        """Begin a bootstrap, into a temporary table if the table exists and may have readers."""
        self.rollback()
        self._layout = layout
        session = self._session
        with self._translated_errors():
            columns = ", ".join(session.declaration(column) for column in layout.columns)
            if self._stored is None:
                session.run(f"CREATE SCHEMA IF NOT EXISTS {quote(self._namespace)}")
                session.run(f"CREATE TABLE {self._table} ({columns})")
            else:
                session.run(f"CREATE TEMP TABLE _tailrace_loading ({columns}) ON COMMIT DROP")

    def convert(self, columns: Sequence[list[Any]]) -> CopyRows:
        """Rows of the snapshot in COPY's text format.

        Runs no queries: `begin` has looked up the types of all columns.
        """
        return self._layout.names, self._session.copy_text(self._layout.columns, columns)

    def load(self, rows: CopyRows) -> None:
        """Load rows of the snapshot: column names and COPY's text."""
        names, text = rows
        with self._translated_errors():
            if self._stored is None:
                # FREEZE: no other session sees the new table yet, so VACUUM need not visit it.
                self._session.copy(self._table, names, text, options=" WITH (FREEZE)")
            else:
                self._session.copy(_LOADING, names, text)

    def finish(self, state: str) -> None:
        """Add the key to the loaded rows, or replace the old rows with them, and commit."""
        with self._translated_errors():
            if self._stored is None:
                self._add_key(self._layout.key)
            else:
                names = name_list(self._layout.names)
                # Before ALTER TABLE: the old rows may fit neither the new types nor the new key.
                self._session.run(f"DELETE FROM {self._table}")
                self._alter(self._stored.layout, self._layout)
                self._session.run(
                    f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {_LOADING}"
                )
        self.commit(state)

    def _add_key(self, key: tuple[str, ...]) -> None:
        if key:
            self._session.run(f"ALTER TABLE {self._table} ADD PRIMARY KEY ({name_list(key)})")

    def alter(self, layout: Layout) -> None:
        """Add and drop columns, so that the table has those of a layout."""
        with self._translated_errors():
            self._alter(self._layout, layout)
        self._layout = layout

    def _alter(self, before: Layout, after: Layout) -> None:
        session, change = self._session, Alteration.between(before, after)
        rekeyed = before.key != after.key
        if rekeyed:
            self._drop_key()
        self._alter_table([f"DROP COLUMN {quote(name)}" for name in change.dropped])
        types = [(quote(column.name), session.type(column)[0]) for column in change.retyped]
        self._alter_table(
            [
                *(f"ALTER {name} TYPE {kind} USING {name}::text::{kind}" for name, kind in types),
                *(f"ADD COLUMN {session.declaration(column)}" for column in change.added),
            ]
        )
        if rekeyed:
            self._add_key(after.key)

    def _alter_table(self, actions: Sequence[str]) -> None:
        if actions:
            self._session.run(f"ALTER TABLE {self._table} {', '.join(actions)}")

    def _drop_key(self) -> None:
        row = self._session.run(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'",
            [self._table],
        ).fetchone()
        if row is not None:
            self._session.run(f"ALTER TABLE {self._table} DROP CONSTRAINT {quote(row[0])}")

    def apply(self, effect: Effect) -> None:
        """Apply the net effect of changes."""
        layout, session = self._layout, self._session
        with self._translated_errors():
            # First: the rows that moves read may be deleted or overwritten below.
            self._stage_moves(effect.moves)
            if effect.truncated:
                # Not TRUNCATE: it is not MVCC-safe, older snapshots would see an empty table.
                session.run(f"DELETE FROM {self._table}")
            if effect.removed:
                keys = [list(values) for values in zip(*effect.removed, strict=True)]
                self._staging.fill(BATCH, layout, layout.key, keys)
                session.run(f"DELETE FROM {self._table} t USING {BATCH} b WHERE {self._same_key()}")
            self._patch(effect.patches)
            if effect.rows:
                rows = transpose(effect.rows, layout.names)
                self._staging.fill(BATCH, layout, layout.names, rows)
                self._upsert(BATCH)
            if effect.moves:
                self._upsert(MOVES)

    def _stage_moves(self, moves: Sequence[tuple[Key, dict[str, Any]]]) -> None:
        """Stage rows that get another key, with the columns that only the target has."""
        layout = self._layout
        if moves:
            rows = [dict.fromkeys(layout.names) | row for _, row in moves]
            self._staging.fill(MOVES, layout, layout.names, transpose(rows, layout.names))
        for base, row in moves:
            missing = [name for name in layout.names if name not in row]
            cursor = self._session.run(
                f"UPDATE {MOVES} b SET {assignments(missing, 't')} FROM {self._table} t"
                f" WHERE {self._key_is('t')} AND {self._key_is('b')}",
                [*self._key_texts(base), *self._key_texts(_key(layout, row))],
            )
            if cursor.rowcount != 1:
                raise missing_row(self._table, base)

    def _patch(self, patches: Sequence[tuple[Key, dict[str, Any]]]) -> None:
        """Update some columns of rows; one statement per set of columns."""
        by_columns: dict[frozenset[str], list[dict[str, Any]]] = {}
        for _, row in patches:
            by_columns.setdefault(frozenset(row), []).append(row)
        for present, rows in by_columns.items():
            names = [column.name for column in self._layout.only(present)]
            others = [name for name in names if name not in self._layout.key]
            self._staging.fill(BATCH, self._layout, names, transpose(rows, names))
            cursor = self._session.run(
                f"UPDATE {self._table} t SET {assignments(others or names, 'b')}"
                f" FROM {BATCH} b WHERE {self._same_key()}"
            )
            if cursor.rowcount != len(rows):
                raise missing_row(self._table, _key(self._layout, rows[0]))

    def _upsert(self, source: str) -> None:
        key, names = self._layout.key, name_list(self._layout.names)
        others = [name for name in self._layout.names if name not in key]
        action = f"UPDATE SET {assignments(others, 'excluded')}" if others else "NOTHING"
        self._session.run(
            f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {source}"
            f" ON CONFLICT ({name_list(key)}) DO {action}"
        )

    def _same_key(self) -> str:
        return " AND ".join(f"t.{quote(name)} = b.{quote(name)}" for name in self._layout.key)

    def _key_is(self, table: str) -> str:
        """The condition that a row has a key, which `_key_texts` has as parameters."""
        return " AND ".join(
            f"{table}.{quote(column.name)} = {self._session.parameter(column)}"
            for column in self._key_columns()
        )

    def _key_texts(self, key: Key) -> list[str | None]:
        pairs = zip(self._key_columns(), key, strict=True)
        return [self._session.text(column, value) for column, value in pairs]

    def _key_columns(self) -> list[Column]:
        """The columns of the key, in the key's order."""
        columns = {column.name: column for column in self._layout.columns}
        return [columns[name] for name in self._layout.key]

    def replay(self, changes: Sequence[Change]) -> None:
        """Apply changes of a table without a key, one after another."""
        with self._translated_errors():
            KeylessTable(self._session, self._table, self._layout).replay(changes)

    def commit(self, state: str) -> None:
        """Commit the changes since the last commit, with the state after them.

        The old state in the condition detects a second mirror of the table.
        """
        layout = self._layout.dump()
        with self._translated_errors():
            if self._stored is None:
                cursor = self._session.run(
                    f"INSERT INTO {_STATES} VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
                    [self._namespace, self._name, state, layout],
                )
            else:
                cursor = self._session.run(
                    f"UPDATE {_STATES} SET state = %s, layout = %s"
                    " WHERE (namespace, name, state) = (%s, %s, %s)",
                    [state, layout, self._namespace, self._name, self._stored.state],
                )
            if cursor.rowcount != 1:
                raise other_writer(self._session.database, self._table)
            self._session.connection.commit()
        self._staging.committed()
        self._stored = StoredMirror(state=state, layout=self._layout)

    def rollback(self) -> None:
        """Discard the changes since the last commit."""
        with self._translated_errors():
            self._session.connection.rollback()
        self._staging.rolled_back()
        if self._stored is not None:
            self._layout = self._stored.layout

    def idle(self) -> None:
        """Nothing to release: readers never wait for a committed transaction."""

    def close(self) -> None:
        """Close the connection. Discards what is not committed."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].connection.close()

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            translated = translate(error, dsn=self._dsn)
            hint = translated.hint.replace("source.dsn", "--to")
            raise type(translated)(f"target: {translated}", hint=hint) from error


def _key(layout: Layout, row: dict[str, Any]) -> Key:
    return tuple(row[name] for name in layout.key)
