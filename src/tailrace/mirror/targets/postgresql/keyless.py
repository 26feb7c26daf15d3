"""Changes of a table without a key: each one changes exactly one of the rows like its old row."""

# ruff: noqa: S608 - names are quoted by tailrace.mirror.targets.sql, values are parameters

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from tailrace.change import Op
from tailrace.mirror.targets.failures import unidentified_row
from tailrace.mirror.targets.sql import quote
from tailrace.mirror.targets.values import transpose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.client import Change
    from tailrace.mirror.layout import Layout
    from tailrace.mirror.targets.postgresql.session import Session

_INSERTS = frozenset({Op.INSERT, Op.READ})


class KeylessTable:
    """A table without a key, as it is during one batch."""

    def __init__(self, session: Session, table: str, layout: Layout) -> None:
        self._session = session
        self._table = table
        self._layout = layout

    def replay(self, changes: Sequence[Change]) -> None:
        """Apply changes one after another. Adjacent inserts share one COPY."""
        names = self._layout.names
        for inserts, group in groupby(changes, key=lambda change: change.op in _INSERTS):
            if inserts:
                rows = transpose([change.data for change in group], names)
                text = self._session.copy_text(self._layout.columns, rows)
                self._session.copy(self._table, names, text)
            else:
                for change in group:
                    self._replay_one(change)

    def _replay_one(self, change: Change) -> None:
        match change.op:
            case Op.UPDATE:
                self._update(change)
            case Op.DELETE:
                self._change_one_row(change, change.data, f"DELETE FROM {self._table}", [])
            case Op.TRUNCATE:
                self._session.run(f"DELETE FROM {self._table}")
            case _:
                pass

    def _update(self, change: Change) -> None:
        if change.old is None:
            raise unidentified_row(self._table, change)
        session, row = self._session, change.old | change.data
        columns = self._layout.only(row)
        sets = ", ".join(
            f"{quote(column.name)} = {session.parameter(column)}" for column in columns
        )
        values = [session.text(column, row[column.name]) for column in columns]
        self._change_one_row(change, change.old, f"UPDATE {self._table} SET {sets}", values)

    def _change_one_row(
        self, change: Change, old: dict[str, Any], action: str, values: list[str | None]
    ) -> None:
        """Run a statement on one of the rows that are equal to the old row.

        Values are compared as text, because some types of PostgreSQL have no equality operator.
        """
        session, columns = self._session, self._layout.only(old)
        equal = " AND ".join(
            f"{quote(column.name)}::text IS NOT DISTINCT FROM {session.parameter(column)}::text"
            for column in columns
        )
        cursor = session.run(
            f"{action} WHERE ctid = (SELECT ctid FROM {self._table} WHERE {equal} LIMIT 1)",
            [*values, *(session.text(column, old[column.name]) for column in columns)],
        )
        if cursor.rowcount != 1:
            raise unidentified_row(self._table, change)
