"""The published tables as they are now, whether they have had changes yet or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.creek.versions import Version, used
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
    """A look at the source. All that it shows was committed before `lsn`."""

    database: str
    lsn: Lsn
    tables: tuple[Version, ...]


def read_catalog(connection: Connection, publication: str, wanted: Tables) -> PublishedSchemas:
    """Look at the tables of a publication that are wanted."""
    state = read_publication(connection, publication)
    relations = [
        published.relation
        for published in (read_published(connection, state) if state else ())
        if wanted.match(published.relation.namespace, published.relation.name)
    ]
    # All types in one question, whosever columns have them.
    together = Relation(
        oid=0,
        namespace="",
        name="",
        replica_identity=ReplicaIdentity.DEFAULT,
        columns=tuple(column for relation in relations for column in relation.columns),
    )
    types = described(connection, together).types if together.columns else {}
    row = connection.execute(_NOW).fetchone()
    assert row is not None
    return PublishedSchemas(
        database=row[0],
        lsn=Lsn.parse(row[1]),
        tables=tuple(
            Version(relation=relation, types=used(relation, types)) for relation in relations
        ),
    )


_NOW = """
SELECT current_database(),
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
             ELSE pg_current_wal_insert_lsn() END)::text
"""
