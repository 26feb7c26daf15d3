"""Published tables as the stream would describe them today: relations read from the catalogs.

For checks, snapshots, backfills and schema documents. The stream is decoded with its own Relation
messages, never with these.
"""

# ruff: noqa: S608 - the fragments are constants

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from tailrace.postgres.catalog import PUBLISHED_TABLES, identity_index
from tailrace.postgres.connection import translate_error
from tailrace.postgres.names import TableName
from tailrace.schema import Column, Relation, ReplicaIdentity

if TYPE_CHECKING:
    from psycopg import Connection

    from tailrace.postgres.publication import PublicationState


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A table as the publication sends it. `toasted`: it has TOAST values today."""

    relation: Relation
    toasted: bool


def read_published(connection: Connection, publication: PublicationState) -> list[Published]:
    """The tables of a publication, with the columns that the publication sends."""
    try:
        rows = connection.execute(_RELATIONS.encode(), (publication.name,)).fetchall()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    listed = {entry.table: entry.columns for entry in publication.tables}
    return [
        Published(
            relation=Relation(
                oid=oid,
                namespace=namespace,
                name=name,
                replica_identity=ReplicaIdentity(identity),
                columns=tuple(
                    Column(name=column, type_oid=kind, type_modifier=modifier, key=key)
                    for column, kind, modifier, key, generated in columns
                    if _sent(publication, listed.get(TableName(namespace, name)), column, generated)
                ),
            ),
            toasted=toasted,
        )
        for oid, namespace, name, identity, toasted, columns in rows
    ]


def _sent(
    publication: PublicationState, listed: tuple[str, ...] | None, column: str, generated: str
) -> bool:
    if listed is not None:
        return column in listed
    return not generated or (generated == "s" and publication.generated_columns)


_RELATIONS = f"""
SELECT c.oid::int8, n.nspname, c.relname, c.relreplident::text,
       EXISTS (SELECT FROM pg_partition_tree(c.oid) leaf JOIN pg_class l ON l.oid = leaf.relid
               WHERE l.reltoastrelid <> 0 AND pg_relation_size(l.reltoastrelid) > 0)
       OR (c.reltoastrelid <> 0 AND pg_relation_size(c.reltoastrelid) > 0),
       coalesce((SELECT jsonb_agg(jsonb_build_array(
                            a.attname, a.atttypid::int8, a.atttypmod,
                            c.relreplident = 'f' OR a.attnum = ANY(coalesce(i.key, '{{}}')),
                            a.attgenerated) ORDER BY a.attnum)
                 FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '[]')
{PUBLISHED_TABLES}
LEFT JOIN LATERAL (
    SELECT i.indkey::int2[] AS key FROM pg_index i
    WHERE i.indrelid = c.oid AND i.indislive AND {identity_index()}
) i ON true
WHERE t.pubname = %s
ORDER BY n.nspname, c.relname
"""
