"""Schema documents: what a table looks like, from which change on, and which of them holds when.

A document comes from the log, where a Relation message stands before the first change that has its
columns, or from the catalog, for what the stream does not tell: defaults, NOT NULL, and tables and
columns that no change has shown yet. Either way it has the position from which it holds. Documents
of a table may be written in another order than they hold in; `holding` is the rule by which readers
find theirs, and `additions` is what has to be written so that the rule is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from tailrace.position import ORIGIN, Lsn, Position
from tailrace.postgres.catalog import CURRENT_LSN, KEY_COLUMNS, NAMED_TABLES
from tailrace.postgres.connection import translate_error
from tailrace.postgres.publication import TableName, read_publication
from tailrace.schema import ReplicaIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from psycopg import Connection

    from tailrace.postgres.publication import PublicationState, PublishedTable
    from tailrace.schema import Relation
    from tailrace.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A table, without the time and the place in its history."""

    table: TableName
    relation_id: int
    columns: tuple[dict[str, Any], ...]
    key: tuple[str, ...]
    """What tells rows apart, in the order of its index; nothing for a table without a key."""

    def fields(self, *, timestamp: int, version: int, position: Position) -> dict[str, Any]:
        """The content of the stored document."""
        return {
            "table": self.table.name,
            "schema": str(self.table),
            "timestamp": timestamp,
            "columns": list(self.columns),
            "key": list(self.key),
            "version": version,
            "lsn": str(position.lsn),
            "ordinal": position.ordinal,
            "relation_id": self.relation_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """That a document holds from a position on. A Relation message knows names and types only."""

    document: Document
    position: Position
    names_and_types_only: bool = False

    def agrees(self, stored: Mapping[str, Any]) -> bool:
        """Whether a stored document says the same, whenever it was written."""
        if stored.get("relation_id") != self.document.relation_id:
            return False
        columns, key = stored.get("columns"), stored.get("key")
        if key is None or sorted(key) != sorted(self.document.key):
            return False
        if not self.names_and_types_only:
            return columns == list(self.document.columns)
        return isinstance(columns, list) and _outline(columns) == _outline(self.document.columns)


def _outline(columns: Iterable[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
    return [(column.get("name"), column.get("data_type")) for column in columns]


def position_of(stored: Mapping[str, Any]) -> Position:
    """From where on a stored document holds; one of an older release holds from the beginning."""
    try:
        return Position(Lsn.parse(str(stored["lsn"])), int(stored["ordinal"]))
    except (KeyError, TypeError, ValueError):
        return ORIGIN


def holding(stored: Sequence[Mapping[str, Any]], at: Position) -> Mapping[str, Any] | None:
    """The document for a change: the last one that holds from there or before, else the first.

    "Last" is by position; of several with one position, the one written last.
    """
    places = [(position_of(document), index) for index, document in enumerate(stored)]
    before = [place for place in places if place[0] <= at]
    if before:
        return stored[max(before)[1]]
    return stored[min(places)[1]] if places else None


def additions(
    stored: Sequence[dict[str, Any]], claims: Iterable[Claim], *, timestamp: int
) -> list[dict[str, Any]]:
    """What to write behind what is stored, so that `holding` agrees with every claim.

    Nothing where it does already, so claims may be made again. The document written last is what
    those read who want to know how the table looks now: it is always that of the last position.
    """
    known, claimed = [*stored], list(claims)

    def next_version() -> int:
        versions = [document.get("version") for document in known]
        return max((each for each in versions if isinstance(each, int)), default=0) + 1

    # What held for want of anything older may not hold any more: claims are looked at again.
    for _ in claimed:
        before = len(known)
        for claim in claimed:
            held = holding(known, claim.position)
            if held is None or not claim.agrees(held):
                known.append(
                    claim.document.fields(
                        timestamp=timestamp, version=next_version(), position=claim.position
                    )
                )
        if len(known) == before:
            break
    if len(known) > len(stored):
        _, last = max((position_of(document), at) for at, document in enumerate(known))
        if not _same(known[last], known[-1]):
            known.append(known[last] | {"timestamp": timestamp, "version": next_version()})
    return known[len(stored) :]


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one.get(name) == other.get(name) for name in ("columns", "key", "relation_id"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnCatalog:
    """The documents of the published tables that are wanted, as they are now, and when that was."""

    lsn: Lsn
    documents: tuple[Document, ...]
    type_names: Mapping[int, str]

    def of_relation(
        self, relation: Relation, known: Mapping[int, str], before: Mapping[str, Any] | None
    ) -> Document:
        """The document of a Relation message.

        What the message does not say is taken from the catalog while that has the same column, and
        from the document before where it has not: the table has changed again since.
        """
        table = TableName(relation.namespace, relation.name)
        columns: list[dict[str, Any]] = []
        now = {
            column["name"]: column
            for document in self.documents
            if document.relation_id == relation.oid
            for column in document.columns
        }
        past = {column["name"]: column for column in (before or {}).get("columns", ())}
        for number, column in enumerate(relation.columns, 1):
            oid = column.type_oid
            kind = self.type_names.get(oid) or known.get(oid) or str(oid)
            told = now.get(column.name)
            if told is None or told["data_type"] != kind:
                told = past.get(column.name) or {
                    "position": number,
                    "is_nullable": True,
                    "column_default": None,
                }
            columns.append({**_EMPTY, **told, "name": column.name, "data_type": kind})
        return Document(
            table=table,
            relation_id=relation.oid,
            columns=tuple(columns),
            key=self._key(relation, before),
        )

    def _key(self, relation: Relation, before: Mapping[str, Any] | None) -> tuple[str, ...]:
        """The message marks the columns of a key, not their order, and under FULL none."""
        known = [
            document.key for document in self.documents if document.relation_id == relation.oid
        ]
        known.append(tuple((before or {}).get("key") or ()))
        if relation.replica_identity in (ReplicaIdentity.FULL, ReplicaIdentity.NOTHING):
            return known[0]
        marked = tuple(column.name for column in relation.columns if column.key)
        return next((key for key in known if sorted(key) == sorted(marked)), marked)


# In the order in which a document names them.
_EMPTY = dict.fromkeys(("name", "position", "data_type", "is_nullable", "column_default"))


def read_catalog(
    connection: Connection, publication: str, tables: Tables, types: Iterable[int] = ()
) -> ColumnCatalog:
    """The catalog now, with the names of these types."""
    state = read_publication(connection, publication)
    wanted = [
        published
        for published in (state.tables if state else ())
        if tables.match(published.table.namespace, published.table.name)
    ]
    names = [table.table.namespace for table in wanted], [table.table.name for table in wanted]
    try:
        # Pinned, so that a default reads the same whatever the role's own path is.
        connection.execute("SET search_path TO pg_catalog, public")
        rows = connection.execute(_COLUMNS, names).fetchall()
        kinds = connection.execute(_TYPES, ([*types],)).fetchall()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    found: dict[TableName, list[dict[str, Any]]] = {}
    oids: dict[TableName, int] = {}
    keys: dict[TableName, list[str]] = {}
    for _, oid, namespace, name, key, generated, column in rows:
        table = TableName(namespace, name)
        oids[table], keys[table] = oid, key
        found.setdefault(table, []).append({**_EMPTY, **column, "generated": generated})
    assert state is not None or not rows
    return ColumnCatalog(
        lsn=Lsn.parse(rows[0][0]) if rows else Lsn(0),
        documents=tuple(
            Document(
                table=table.table,
                relation_id=oids[table.table],
                columns=_sent(found[table.table], table, state),
                key=_key(keys[table.table], table),
            )
            for table in wanted
            if state is not None and table.table in found
        ),
        type_names=dict(kinds),
    )


def _sent(
    columns: list[dict[str, Any]], table: PublishedTable, publication: PublicationState
) -> tuple[dict[str, Any], ...]:
    """The columns that the stream carries: a consumer never sees the others."""

    def sent(column: dict[str, Any]) -> bool:
        if table.columns is not None:
            return column["name"] in table.columns
        generated = column["generated"]
        return not generated or (generated == "s" and publication.generated_columns)

    return tuple(
        {name: value for name, value in column.items() if name != "generated"}
        for column in columns
        if sent(column)
    )


def _key(columns: list[str], table: PublishedTable) -> tuple[str, ...]:
    sent = table.columns is None or set(columns) <= set(table.columns)
    return tuple(columns) if sent else ()


# Types without modifiers, as information_schema has them, but arrays and user types by name. The
# LSN is read by the statement that reads the columns: whatever it sees was committed before that.
_COLUMNS = f"""
SELECT {CURRENT_LSN},
       c.oid::int8, n.nspname, c.relname, key.columns, a.attgenerated::text, jsonb_build_object(
           'name', a.attname, 'position', a.attnum,
           'data_type', format_type(a.atttypid, NULL),
           'is_nullable', NOT (a.attnotnull OR (t.typtype = 'd' AND t.typnotnull)),
           'column_default',
           CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END)
{NAMED_TABLES}
CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_agg(a.attname ORDER BY k.place), '[]') {KEY_COLUMNS}
) key (columns)
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
ORDER BY n.nspname, c.relname, a.attnum
"""
_TYPES = """
SELECT oid::int8, format_type(oid, NULL) FROM pg_type WHERE oid = ANY(%s::int8[]::oid[])
"""
