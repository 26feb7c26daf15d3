"""The session of a PostgreSQL target: statements, COPY, and the types of columns."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg

from tailrace.mirror.layout import Kind, kind_of
from tailrace.mirror.targets.copytext import copy_text
from tailrace.mirror.targets.sql import name_list, quote
from tailrace.mirror.targets.values import arrow, plain
from tailrace.mirror.targets.values import text as text_of
from tailrace.postgres.connection import SESSION_SQL, conninfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.mirror.layout import Column

# -1: without a modifier some names mean a length of one, `character` for example.
_TYPE_SQL = """
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
"""The name of a type in this database, and the type below it if it is a domain."""


class Session:
    """An open connection, outside of autocommit."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(
            conninfo(dsn, application_name="tailrace mirror"), autocommit=False
        )
        self._types: dict[str, tuple[str, Kind]] = {}

    @property
    def database(self) -> str:
        """The name of the database, for errors."""
        return f"database {self.connection.info.dbname}"

    def prepare(self, create_states: str) -> None:
        """Set the session up, and create the table of states."""
        self.run(SESSION_SQL)
        # As in schema documents: types outside these schemas have qualified names.
        self.run("SET search_path TO pg_catalog, public")
        # The state is in the transaction: after a crash, the last ones are replayed.
        self.run("SET synchronous_commit TO off")
        self.run("SET client_min_messages TO warning")
        # Two concurrent CREATE TABLE IF NOT EXISTS do not see each other, and one would fail.
        self.run("SELECT pg_advisory_xact_lock(hashtext('tailrace mirror'))")
        self.run(create_states)
        self.connection.commit()

    def run(self, statement: str, values: Sequence[Any] | None = None) -> psycopg.Cursor:
        """Run a statement."""
        return self.connection.execute(statement.encode(), values)

    def copy(
        self, table: str, names: Sequence[str], rows: memoryview | bytes, options: str = ""
    ) -> None:
        """Load rows in COPY's text format."""
        statement = f"COPY {table} ({name_list(names)}) FROM STDIN{options}"
        with self.connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.write(rows)

    def type(self, column: Column) -> tuple[str, Kind]:
        """The name of a column's type in this database, and how messages represent its values.

        A type that this database does not have becomes text, because its values are text.
        """
        data_type = column.data_type
        if data_type not in self._types:
            # A savepoint: before PostgreSQL 16 to_regtype fails for text that is not a type name.
            with contextlib.suppress(psycopg.Error), self.connection.transaction():
                row = self.run(_TYPE_SQL, [data_type]).fetchone()
                if row is not None:
                    self._types[data_type] = str(row[0]), kind_of(str(row[1]))
            self._types.setdefault(data_type, ("text", Kind.TEXT))
        return self._types[data_type]

    def declaration(self, column: Column) -> str:
        """A column in CREATE TABLE."""
        return f"{quote(column.name)} {self.type(column)[0]}"

    def copy_text(self, columns: Sequence[Column], values: Sequence[list[Any]]) -> memoryview:
        """Columns of values as in messages, in COPY's text format."""
        kinds = [self.type(column)[1] for column in columns]
        pairs = zip(kinds, values, strict=True)
        return copy_text([arrow(kind, plain(kind, column)) for kind, column in pairs])

    def parameter(self, column: Column) -> str:
        """The placeholder of a value of this column, which is passed as text."""
        return f"%s::{self.type(column)[0]}"

    def text(self, column: Column, value: Any) -> str | None:
        """A value as in messages, in the text format of this database."""
        return text_of(plain(self.type(column)[1], [value])[0])
