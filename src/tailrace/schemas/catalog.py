"""The present columns of the published tables, from the catalog, as schema documents.

`ColumnCatalog.of_relation` also completes Relation messages of the log: they have names and types
of columns, but neither defaults nor NOT NULL nor the order of the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from tailrace.jetstream.names import table_key
from tailrace.position import Lsn, Position
from tailrace.postgres.catalog import CURRENT_LSN, KEY_COLUMNS, NAMED_TABLES
from tailrace.postgres.connection import translate_error
from tailrace.postgres.names import TableName
from tailrace.postgres.publication import read_publication
from tailrace.schema import ReplicaIdentity
from tailrace.schemas.documents import Claim, Document, document_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from psycopg import Connection

    from tailrace.log.relation_history import RelationVersion
    from tailrace.postgres.publication import PublicationState, PublishedTable
    from tailrace.schema import Relation
    from tailrace.tables import Tables

# In the order in which a document has them.
_EMPTY = dict.fromkeys(("name", "position", "data_type", "is_nullable", "column_default"))
_UNKNOWN = {"is_nullable": True, "column_default": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnCatalog:
    """The documents of a pipeline's published tables at `lsn`."""

    lsn: Lsn
    documents: tuple[Document, ...]
    type_names: Mapping[int, str]

    def claims(
        self,
        key: str,
        versions: Iterable[RelationVersion],
        stored: Sequence[Mapping[str, Any]],
        type_names: Mapping[int, str],
    ) -> list[Claim]:
        """What log and catalog say of the table with this key, the log first.

        The stream has Relation messages of partitions too, but sends their changes under the name
        of the root. Such a message is skipped: a table counts only if it has a stored document, or
        is in the catalog, or was named by an earlier message that counts.
        """
        present = [document for document in self.documents if document_key(document) == key]
        published = {document.relation_id for document in self.documents}
        claims: list[Claim] = []
        for version in versions:
            relation = version.relation
            counts = bool(stored or present or claims) or relation.oid in published
            if counts and table_key(relation.namespace, relation.name) == key:
                previous = document_at(stored, version.position)
                document = self.of_relation(relation, type_names, previous)
                claims.append(
                    Claim(document=document, position=version.position, names_and_types_only=True)
                )
        return claims + [
            Claim(document=document, position=Position(self.lsn)) for document in present
        ]

    def of_relation(
        self, relation: Relation, type_names: Mapping[int, str], previous: Mapping[str, Any] | None
    ) -> Document:
        """The document of a Relation message.

        What the message lacks is taken from the catalog if that has the same column with the same
        type, else from the previous document: then the table has changed again since.
        """
        present = {
            column["name"]: column
            for document in self.documents
            if document.relation_id == relation.oid
            for column in document.columns
        }
        past = {column["name"]: column for column in (previous or {}).get("columns", ())}
        columns: list[dict[str, Any]] = []
        for number, column in enumerate(relation.columns, 1):
            oid = column.type_oid
            data_type = self.type_names.get(oid) or type_names.get(oid) or str(oid)
            known = present.get(column.name)
            if known is None or known["data_type"] != data_type:
                known = past.get(column.name) or {"position": number, **_UNKNOWN}
            columns.append({**_EMPTY, **known, "name": column.name, "data_type": data_type})
        return Document(
            table=TableName(relation.namespace, relation.name),
            relation_id=relation.oid,
            columns=tuple(columns),
            key=self._key(relation, previous),
        )

    def _key(self, relation: Relation, previous: Mapping[str, Any] | None) -> tuple[str, ...]:
        """The key. A Relation message marks its columns, but not their order, and under FULL its
        marks do not tell the key."""
        keys = [document.key for document in self.documents if document.relation_id == relation.oid]
        keys.append(tuple((previous or {}).get("key") or ()))
        if relation.replica_identity in (ReplicaIdentity.FULL, ReplicaIdentity.NOTHING):
            return keys[0]
        marked = tuple(column.name for column in relation.columns if column.key)
        return next((key for key in keys if sorted(key) == sorted(marked)), marked)


def document_key(document: Document) -> str:
    """The key of a document in the bucket."""
    return table_key(document.table.namespace, document.table.name)


def read_catalog(
    connection: Connection, publication: str, tables: Tables, types: Iterable[int] = ()
) -> ColumnCatalog:
    """The published tables that `tables` selects, and the names of these types."""
    state = read_publication(connection, publication)
    selected = [
        published
        for published in (state.tables if state else ())
        if tables.match(published.table.namespace, published.table.name)
    ]
    names = [table.table.namespace for table in selected], [table.table.name for table in selected]
    try:
        # Pinned, so that a default has the same text whatever the search_path of the role is.
        connection.execute("SET search_path TO pg_catalog, public")
        rows = connection.execute(_COLUMNS, names).fetchall()
        type_names = connection.execute(_TYPES, ([*types],)).fetchall()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    return ColumnCatalog(
        lsn=Lsn.parse(rows[0][0]) if rows else Lsn(0),
        documents=_documents(rows, selected, state) if state else (),
        type_names=dict(type_names),
    )


def _documents(
    rows: list[tuple[Any, ...]], selected: list[PublishedTable], state: PublicationState
) -> tuple[Document, ...]:
    columns: dict[TableName, list[dict[str, Any]]] = {}
    oids: dict[TableName, int] = {}
    keys: dict[TableName, list[str]] = {}
    for _, oid, namespace, name, key, generated, column in rows:
        table = TableName(namespace, name)
        oids[table], keys[table] = oid, key
        columns.setdefault(table, []).append({**_EMPTY, **column, "generated": generated})
    return tuple(
        Document(
            table=published.table,
            relation_id=oids[published.table],
            columns=_published(columns[published.table], published, state),
            key=_published_key(keys[published.table], published),
        )
        for published in selected
        if published.table in columns
    )


def _published(
    columns: list[dict[str, Any]], table: PublishedTable, publication: PublicationState
) -> tuple[dict[str, Any], ...]:
    """The columns that the publication sends."""

    def published(column: dict[str, Any]) -> bool:
        if table.columns is not None:
            return column["name"] in table.columns
        generated = column["generated"]
        return not generated or (generated == "s" and publication.generated_columns)

    return tuple(
        {name: value for name, value in column.items() if name != "generated"}
        for column in columns
        if published(column)
    )


def _published_key(columns: list[str], table: PublishedTable) -> tuple[str, ...]:
    """The key; empty if the publication leaves out one of its columns."""
    complete = table.columns is None or set(columns) <= set(table.columns)
    return tuple(columns) if complete else ()


# Types without modifiers, as information_schema has them, but arrays and user types by name. The
# LSN is read by the statement that reads the columns, so everything it sees was committed before.
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
