"""The published tables at present, with or without changes so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.creek.versions import Version, types_of
from tailrace.position import Lsn
from tailrace.postgres.publication import read_publication
from tailrace.postgres.relations import read_published
from tailrace.schema import Relation, ReplicaIdentity
from tailrace.snapshot.table import described

if TYPE_CHECKING:
    from psycopg import Connection

    from tailrace.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSchemas:
    """A read of the catalog. Everything in it was committed before `lsn`."""

    database: str
    lsn: Lsn
    tables: tuple[Version, ...]


def read_catalog(connection: Connection, publication: str, selected: Tables) -> PublishedSchemas:
    """Read the tables of a publication that `selected` matches."""
    state = read_publication(connection, publication)
    relations = [
        published.relation
        for published in (read_published(connection, state) if state else ())
        if selected.match(published.relation.namespace, published.relation.name)
    ]
    # One query for the types of all columns of all tables.
    all_columns = Relation(
        oid=0,
        namespace="",
        name="",
        replica_identity=ReplicaIdentity.DEFAULT,
        columns=tuple(column for relation in relations for column in relation.columns),
    )
    types = described(connection, all_columns).types if all_columns.columns else {}
    row = connection.execute(_NOW).fetchone()
    assert row is not None
    return PublishedSchemas(
        database=row[0],
        lsn=Lsn.parse(row[1]),
        tables=tuple(
            Version(relation=relation, types=types_of(relation, types)) for relation in relations
        ),
    )


_NOW = """
SELECT current_database(),
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
             ELSE pg_current_wal_insert_lsn() END)::text
"""
