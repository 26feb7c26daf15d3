"""Temporary tables for the rows of changes.

COPY writes the rows of a batch into a temporary table. One statement per kind of change then
deletes, updates or inserts the rows of the mirrored table from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.mirror.layout import Layout
    from tailrace.mirror.targets.postgresql.session import Session

BATCH = "pg_temp._tailrace_batch"
"""Rows of a batch."""
MOVES = "pg_temp._tailrace_moves"
"""Rows that get another key."""


class StagingTables:
    """The temporary tables of one session. Both have the columns of the mirrored table."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._columns: tuple[tuple[str, str], ...] = ()
        """Names and types of their columns; empty: the tables do not exist."""
        self._filled: set[str] = set()
        """The tables with rows in this transaction."""

    def fill(
        self, table: str, layout: Layout, names: Sequence[str], values: Sequence[list[Any]]
    ) -> None:
        """Replace the rows of a temporary table."""
        self._create(layout)
        # ON COMMIT DELETE ROWS has emptied the table at the last commit.
        if table in self._filled:
            self._session.run(f"TRUNCATE {table}")
        self._filled.add(table)
        by_name = dict(zip(names, values, strict=True))
        columns = layout.only(by_name)
        text = self._session.copy_text(columns, [by_name[column.name] for column in columns])
        self._session.copy(table, [column.name for column in columns], text)

    def _create(self, layout: Layout) -> None:
        """Create the tables, unless they exist with the columns of this layout."""
        session = self._session
        columns = tuple((column.name, session.type(column)[0]) for column in layout.columns)
        if self._columns == columns:
            return
        declarations = ", ".join(session.declaration(column) for column in layout.columns)
        for table in (BATCH, MOVES):
            session.run(f"DROP TABLE IF EXISTS {table}")
            session.run(
                f"CREATE TEMP TABLE {table.removeprefix('pg_temp.')} ({declarations})"
                " ON COMMIT DELETE ROWS"
            )
        self._columns, self._filled = columns, set()

    def committed(self) -> None:
        """Note a commit, which deletes the rows."""
        self._filled = set()

    def rolled_back(self) -> None:
        """Note a rollback, which drops tables that its transaction created."""
        self._columns, self._filled = (), set()
