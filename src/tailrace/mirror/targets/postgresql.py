"""PostgreSQL: the table under its own name, with the source's own types.

Rows come in by COPY: those of a bootstrap into the table itself, those of changes into a temporary
table, from which one statement each removes, fills in and writes.
"""

# ruff: noqa: S608 - names are quoted by tailrace.mirror.targets.sql, values are parameters

from __future__ import annotations

import contextlib
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg

from tailrace.change import Op
from tailrace.mirror.layout import Alteration, Column, Kind, Layout, kind_of
from tailrace.mirror.targets.copytext import copy_text
from tailrace.mirror.targets.failures import absent, fenced, occupied, without_key
from tailrace.mirror.targets.sql import assigned, listed, quoted
from tailrace.mirror.targets.target import STATES, StoredMirror
from tailrace.mirror.targets.values import arrow, plain, transposed
from tailrace.mirror.targets.values import text as text_of
from tailrace.postgres.connection import SESSION_SQL, conninfo, translate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.client import Change
    from tailrace.client.names import Table
    from tailrace.mirror.net import Effect, Key
    from tailrace.snapshot.job import Form

    Loadable = tuple[Sequence[str], memoryview | bytes]

_STATES = f"public.{STATES}"
_LOADING = "pg_temp._tailrace_loading"
_BATCH = "pg_temp._tailrace_batch"
_MOVES = "pg_temp._tailrace_moves"
_INSERTS = frozenset({Op.INSERT, Op.READ})
_CREATE_STATES = f"""
CREATE TABLE IF NOT EXISTS {_STATES} (
    namespace text, name text, state text NOT NULL, layout text NOT NULL,
    PRIMARY KEY (namespace, name)
)
"""
# -1: without modifiers a type's name may mean one of length one, `character` for example.
_TYPE = """
SELECT format_type(t.oid, -1), format_type(coalesce(b.oid, t.oid), NULL)
FROM pg_type t
LEFT JOIN LATERAL (
    WITH RECURSIVE below AS (
        SELECT t.typbasetype AS oid WHERE t.typtype = 'd'
        UNION ALL
        SELECT d.typbasetype FROM below JOIN pg_type d ON d.oid = below.oid WHERE d.typtype = 'd'
    )
    SELECT below.oid FROM below JOIN pg_type l ON l.oid = below.oid WHERE l.typtype <> 'd'
) b ON true
WHERE t.oid = to_regtype(%s)
"""


class Postgresql:
    """A table in a database."""

    form: ClassVar[Form] = "copy"

    def __init__(self, dsn: str, table: Table) -> None:
        self._dsn = dsn
        self._namespace, self._name = table.schema, table.name
        self._table = f"{quoted(table.schema)}.{quoted(table.name)}"
        self._connection: psycopg.Connection | None = None
        self._kept: StoredMirror | None = None
        self._layout = Layout(columns=(), key=())
        self._types: dict[str, tuple[str, Kind]] = {}
        self._batch: tuple[tuple[str, str], ...] = ()
        """The columns of the temporary tables, and their types."""
        self._filled: set[str] = set()
        """Those of them that have rows in this transaction."""

    @property
    def _db(self) -> psycopg.Connection:
        assert self._connection is not None
        return self._connection

    @property
    def _place(self) -> str:
        return f"database {self._db.info.dbname}"

    def open(self) -> StoredMirror | None:
        """Connect, and say what is there."""
        self.close()
        with self._failures():
            self._connection = psycopg.connect(
                conninfo(self._dsn, application_name="tailrace mirror"), autocommit=False
            )
            self._prepare()
            found = self._run(
                f"SELECT state, layout FROM {_STATES} WHERE (namespace, name) = (%s, %s)",
                [self._namespace, self._name],
            ).fetchone()
            self._kept = (
                StoredMirror(state=found[0], layout=Layout.load(found[1])) if found else None
            )
            exists = self._run("SELECT to_regclass(%s)", [self._table]).fetchone()
            self._db.commit()
        if self._kept is not None:
            self._layout = self._kept.layout
        elif exists and exists[0] is not None:
            raise occupied(self._place, self._table)
        return self._kept

    def _prepare(self) -> None:
        self._run(SESSION_SQL)
        # As in the schema documents: types outside of these are named with their schemas.
        self._run("SET search_path TO pg_catalog, public")
        # The place is in the transaction: after a crash the last ones are done again.
        self._run("SET synchronous_commit TO off")
        self._run("SET client_min_messages TO warning")
        # Two that make the same table at once do not see each other, and one would fail.
        self._run("SELECT pg_advisory_xact_lock(hashtext('tailrace mirror'))")
        self._run(_CREATE_STATES)
        self._db.commit()

    def begin(self, layout: Layout) -> None:
        """Begin a bootstrap: beside the table, if there is one that somebody may be reading."""
        self.rollback()
        self._layout = layout
        with self._failures():
            columns = ", ".join(self._declared(column) for column in layout.columns)
            if self._kept is None:
                self._run(f"CREATE SCHEMA IF NOT EXISTS {quoted(self._namespace)}")
                self._run(f"CREATE TABLE {self._table} ({columns})")
            else:
                self._run(f"CREATE TEMP TABLE _tailrace_loading ({columns}) ON COMMIT DROP")

    def _declared(self, column: Column) -> str:
        return f"{quoted(column.name)} {self._type(column)[0]}"

    def _type(self, column: Column) -> tuple[str, Kind]:
        """A column's type as this database names it, and how its values come.

        A type that this database does not know is text: its values are.
        """
        given = column.data_type
        if given not in self._types:
            # A savepoint: what cannot be read as a type fails before PostgreSQL 16.
            with contextlib.suppress(psycopg.Error), self._db.transaction():
                found = self._run(_TYPE, [given]).fetchone()
                if found is not None:
                    self._types[given] = str(found[0]), kind_of(str(found[1]))
            self._types.setdefault(given, ("text", Kind.TEXT))
        return self._types[given]

    def shaped(self, columns: Sequence[list[Any]]) -> Loadable:
        """Rows of the snapshot as COPY takes them."""
        return self._layout.names, self._text(self._layout.columns, columns)

    def load(self, rows: Loadable) -> None:
        """Rows of the snapshot: names of columns, and COPY's text."""
        names, text = rows
        fresh = self._kept is None
        with self._failures():
            # Nobody else sees the table yet, so its rows need no visibility of their own.
            self._copy(
                self._table if fresh else _LOADING, names, text,
                options=" WITH (FREEZE)" if fresh else "",
            )  # fmt: skip

    def _text(self, columns: Sequence[Column], values: Sequence[list[Any]]) -> memoryview:
        kinds = [self._type(column)[1] for column in columns]
        given = zip(kinds, values, strict=True)
        return copy_text([arrow(kind, plain(kind, each)) for kind, each in given])

    def _copy(
        self,
        table: str,
        names: Sequence[str],
        rows: memoryview | bytes,
        options: str = "",
    ) -> None:
        statement = f"COPY {table} ({listed(names)}) FROM STDIN{options}"
        with self._db.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.write(rows)

    def finish(self, state: str) -> None:
        """Index what was loaded, or put it in the place of what is there, and commit."""
        with self._failures():
            if self._kept is None:
                self._add_key(self._layout.key)
            else:
                names = listed(self._layout.names)
                # Before it is altered: what is there may fit neither new types nor a new key.
                self._run(f"DELETE FROM {self._table}")
                self._alter(self._kept.layout, self._layout)
                self._run(f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {_LOADING}")
        self.commit(state)

    def _add_key(self, key: tuple[str, ...]) -> None:
        if key:
            self._run(f"ALTER TABLE {self._table} ADD PRIMARY KEY ({listed(key)})")

    def alter(self, layout: Layout) -> None:
        """Give the table the columns of a layout."""
        with self._failures():
            self._alter(self._layout, layout)
        self._layout = layout

    def _alter(self, before: Layout, after: Layout) -> None:
        change = Alteration.between(before, after)
        rekeyed = before.key != after.key
        if rekeyed:
            self._drop_key()
        parts = [f"DROP COLUMN {quoted(name)}" for name in change.dropped]
        if parts:
            self._run(f"ALTER TABLE {self._table} {', '.join(parts)}")
        parts = [
            f"ALTER {quoted(column.name)} TYPE {self._type(column)[0]}"
            f" USING {quoted(column.name)}::text::{self._type(column)[0]}"
            for column in change.retyped
        ]
        parts += [f"ADD COLUMN {self._declared(column)}" for column in change.added]
        if parts:
            self._run(f"ALTER TABLE {self._table} {', '.join(parts)}")
        if rekeyed:
            self._add_key(after.key)

    def _drop_key(self) -> None:
        found = self._run(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'",
            [self._table],
        ).fetchone()
        if found is not None:
            self._run(f"ALTER TABLE {self._table} DROP CONSTRAINT {quoted(found[0])}")

    def apply(self, effect: Effect) -> None:
        """Do what changes come to."""
        layout = self._layout
        with self._failures():
            self._move(effect.moves)
            if effect.truncated:
                # Not TRUNCATE: that is seen by readers who look at an older moment.
                self._run(f"DELETE FROM {self._table}")
            if effect.removed:
                self._fill(_BATCH, layout.key, _columns(effect.removed))
                self._run(f"DELETE FROM {self._table} t USING {_BATCH} b WHERE {self._matched()}")
            self._patch(effect.patches)
            if effect.rows:
                self._fill(_BATCH, layout.names, transposed(effect.rows, layout.names))
                self._write(_BATCH)
            if effect.moves:
                self._write(_MOVES)

    def _move(self, moves: Sequence[tuple[Key, dict[str, Any]]]) -> None:
        """Put rows that get another key aside, with the columns that only the target has."""
        layout = self._layout
        rows = [dict.fromkeys(layout.names) | row for _, row in moves]
        if rows:
            self._fill(_MOVES, layout.names, transposed(rows, layout.names))
        for base, row in moves:
            missing = [name for name in layout.names if name not in row]
            done = self._run(
                f"UPDATE {_MOVES} b SET {assigned(missing, 't')} FROM {self._table} t"
                f" WHERE {self._is('t', layout.key)} AND {self._is('b', layout.key)}",
                [*self._texts(layout.key, base), *self._texts(layout.key, _key(layout, row))],
            )
            if done.rowcount != 1:
                raise absent(self._table, base)

    def _patch(self, patches: Sequence[tuple[Key, dict[str, Any]]]) -> None:
        """Replace some columns of rows that are there."""
        alike: dict[frozenset[str], list[dict[str, Any]]] = {}
        for _, row in patches:
            alike.setdefault(frozenset(row), []).append(row)
        for given, rows in alike.items():
            names = [column.name for column in self._layout.only(given)]
            others = [name for name in names if name not in self._layout.key]
            self._fill(_BATCH, names, transposed(rows, names))
            done = self._run(
                f"UPDATE {self._table} t SET {assigned(others or names, 'b')}"
                f" FROM {_BATCH} b WHERE {self._matched()}"
            )
            if done.rowcount != len(rows):
                raise absent(self._table, _key(self._layout, rows[0]))

    def _write(self, source: str) -> None:
        key, names = self._layout.key, listed(self._layout.names)
        others = [name for name in self._layout.names if name not in key]
        action = f"UPDATE SET {assigned(others, 'excluded')}" if others else "NOTHING"
        self._run(
            f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {source}"
            f" ON CONFLICT ({listed(key)}) DO {action}"
        )

    def _fill(self, table: str, names: Sequence[str], values: Sequence[list[Any]]) -> None:
        """Rows into a temporary table, and nothing else."""
        wanted = tuple((column.name, self._type(column)[0]) for column in self._layout.columns)
        if self._batch != wanted:
            columns = ", ".join(self._declared(column) for column in self._layout.columns)
            for name in (_BATCH, _MOVES):
                self._run(f"DROP TABLE IF EXISTS {name}")
                self._run(
                    f"CREATE TEMP TABLE {name.removeprefix('pg_temp.')} ({columns})"
                    " ON COMMIT DELETE ROWS"
                )
            self._batch, self._filled = wanted, set()
        if table in self._filled:
            self._run(f"TRUNCATE {table}")
        self._filled.add(table)
        given = dict(zip(names, values, strict=True))
        columns_ = self._layout.only(given)
        text = self._text(columns_, [given[column.name] for column in columns_])
        self._copy(table, [column.name for column in columns_], text)

    def _matched(self) -> str:
        return " AND ".join(f"t.{quoted(name)} = b.{quoted(name)}" for name in self._layout.key)

    def _is(self, table: str, names: Sequence[str]) -> str:
        """Conditions that take the texts of values as parameters."""
        types = {column.name: self._type(column)[0] for column in self._layout.columns}
        return " AND ".join(f"{table}.{quoted(name)} = %s::{types[name]}" for name in names)

    def _texts(self, names: Sequence[str], values: Sequence[Any]) -> list[str | None]:
        kinds = {column.name: self._type(column)[1] for column in self._layout.columns}
        return [
            text_of(plain(kinds[name], [value])[0])
            for name, value in zip(names, values, strict=True)
        ]

    def replay(self, changes: Sequence[Change]) -> None:
        """Do changes of a table without a key, one after another."""
        layout = self._layout
        with self._failures():
            for inserts, group in groupby(changes, key=lambda change: change.op in _INSERTS):
                if inserts:
                    rows = [change.data for change in group]
                    text = self._text(layout.columns, transposed(rows, layout.names))
                    self._copy(self._table, layout.names, text)
                else:
                    for change in group:
                        self._step(change)

    def _step(self, change: Change) -> None:
        match change.op:
            case Op.UPDATE:
                if change.old is None:
                    raise without_key(self._table, change)
                row = change.old | change.data
                names = [column.name for column in self._layout.only(row)]
                types = {column.name: self._type(column)[0] for column in self._layout.columns}
                sets = ", ".join(f"{quoted(name)} = %s::{types[name]}" for name in names)
                values = self._texts(names, [row[name] for name in names])
                self._one(change, change.old, f"UPDATE {self._table} SET {sets}", values)
            case Op.DELETE:
                self._one(change, change.data, f"DELETE FROM {self._table}", [])
            case Op.TRUNCATE:
                self._run(f"DELETE FROM {self._table}")
            case _:
                pass

    def _one(
        self, change: Change, old: dict[str, Any], action: str, values: list[str | None]
    ) -> None:
        """Do something to one of the rows that look like this.

        Looks are compared as text: not every type of PostgreSQL knows what is equal.
        """
        columns = self._layout.only(old)
        names = [column.name for column in columns]
        alike = " AND ".join(
            f"{quoted(column.name)}::text IS NOT DISTINCT FROM %s::{self._type(column)[0]}::text"
            for column in columns
        )
        done = self._run(
            f"{action} WHERE ctid = (SELECT ctid FROM {self._table} WHERE {alike} LIMIT 1)",
            [*values, *self._texts(names, [old[name] for name in names])],
        )
        if done.rowcount != 1:
            raise without_key(self._table, change)

    def _run(self, statement: str, values: Sequence[Any] | None = None) -> psycopg.Cursor:
        return self._db.execute(statement.encode(), values)

    def commit(self, state: str) -> None:
        """Keep what was done, and the place behind it."""
        layout = self._layout.dump()
        with self._failures():
            if self._kept is None:
                done = self._run(
                    f"INSERT INTO {_STATES} VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
                    [self._namespace, self._name, state, layout],
                )
            else:
                done = self._run(
                    f"UPDATE {_STATES} SET state = %s, layout = %s"
                    " WHERE (namespace, name, state) = (%s, %s, %s)",
                    [state, layout, self._namespace, self._name, self._kept.state],
                )
            if done.rowcount != 1:
                raise fenced(self._place, self._table)
            self._db.commit()
        self._filled = set()
        self._kept = StoredMirror(state=state, layout=self._layout)

    def rollback(self) -> None:
        """Forget what was done since the last commit."""
        with self._failures():
            self._db.rollback()
        # A temporary table of this transaction is gone with it.
        self._batch, self._filled = (), set()
        if self._kept is not None:
            self._layout = self._kept.layout

    def rest(self) -> None:
        """Readers are never in the way."""

    def close(self) -> None:
        """End the session; what is not committed is gone."""
        connection, self._connection = self._connection, None
        self._batch, self._filled = (), set()
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            found = translate(error, dsn=self._dsn)
            hint = found.hint.replace("source.dsn", "--to")
            raise type(found)(f"the target: {found}", hint=hint) from error


def _key(layout: Layout, row: dict[str, Any]) -> Key:
    return tuple(row[name] for name in layout.key)


def _columns(keys: Sequence[Key]) -> list[list[Any]]:
    return [list(values) for values in zip(*keys, strict=True)]
