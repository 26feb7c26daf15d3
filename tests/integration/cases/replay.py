"""The state checker: captured changes replayed into plain tables and compared with SELECT.

Knows the four value states and nothing of how they were decoded. PostgreSQL's own text output is
what it compares with; its settings are written out here, apart from the product's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg import sql

from tailrace.change import ABSENT, UNCHANGED, Change, Op, Row

if TYPE_CHECKING:
    from tailrace.schema import Relation
    from tests.fix_postgres import Database

_TEXT_SETTINGS = """
SET datestyle TO 'ISO, MDY'; SET intervalstyle TO postgres; SET timezone TO 'UTC';
SET bytea_output TO hex; SET extra_float_digits TO 1; SET client_encoding TO 'UTF8';
SET search_path TO public; SET quote_all_identifiers TO off
"""

Image = tuple[str, Row | None, Row | None]


def images(changes: list[Change]) -> list[Image]:
    """Operation, old row, new row."""
    return [(change.op.value, change.before, change.after) for change in changes]


def inserted(changes: list[Change]) -> list[Row]:
    """The new rows, of changes that are all inserts."""
    assert {change.op for change in changes} <= {Op.INSERT}
    return [change.after for change in changes if change.after is not None]


def relation_of(change: Change) -> Relation:
    assert change.relation is not None
    return change.relation


def names(changes: list[Change]) -> list[str]:
    """Operation and table of each change."""
    return [f"{change.op.value} {relation_of(change).name}" for change in changes]


def select(database: Database, query: str | sql.Composed) -> list[Row]:
    """Rows as the types' own output functions give them; a cast to text says `true` for `t`."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(_TEXT_SETTINGS.encode())
        cursor.execute(query.encode() if isinstance(query, str) else query)
        result = cursor.pgresult
        assert result is not None
        return [
            tuple(result.get_value(row, column) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]


@dataclass(slots=True)
class Replay:
    """Tables made from nothing but changes."""

    relations: dict[int, Relation] = field(default_factory=dict)
    rows: dict[int, list[Row]] = field(default_factory=dict)

    def apply(self, changes: list[Change]) -> Replay:
        for change in changes:
            if change.op is not Op.MESSAGE:
                self._apply(change, relation_of(change))
        return self

    def _apply(self, change: Change, relation: Relation) -> None:
        self.relations[relation.oid] = relation
        rows = self.rows.setdefault(relation.oid, [])
        match change.op:
            case Op.INSERT:
                assert change.after is not None
                rows.append(change.after)
            case Op.UPDATE:
                assert change.after is not None
                old = rows.pop(self._find(rows, change.before or _key(change.after, relation)))
                pairs = zip(old, change.after, strict=True)
                rows.append(tuple(before if now is UNCHANGED else now for before, now in pairs))
            case Op.DELETE:
                assert change.before is not None
                del rows[self._find(rows, change.before)]
            case Op.TRUNCATE:
                rows.clear()
            case Op.MESSAGE | Op.READ:
                raise AssertionError(change)

    @staticmethod
    def _find(rows: list[Row], wanted: Row) -> int:
        assert any(value is not ABSENT for value in wanted)
        return next(
            number
            for number, row in enumerate(rows)
            if all(want in (ABSENT, value) for want, value in zip(wanted, row, strict=True))
        )

    def check(self, database: Database) -> None:
        """Every table holds what PostgreSQL says it holds."""
        for oid, relation in self.relations.items():
            columns = [sql.Identifier(column.name) for column in relation.columns]
            query = sql.SQL("SELECT {} FROM {}").format(
                sql.SQL(", ").join(columns), sql.Identifier(relation.namespace, relation.name)
            )
            assert Counter(self.rows[oid]) == Counter(select(database, query)), relation.name


def _key(row: Row, relation: Relation) -> Row:
    columns = zip(row, relation.columns, strict=True)
    return tuple(value if column.key else ABSENT for value, column in columns)
