"""The published tables as they are now, whether they have had changes yet or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.creek.versions import Version, used
from tailrace.position import Lsn
from tailrace.postgres.catalog import CURRENT_LSN, read_types
from tailrace.postgres.publication import read_publication
from tailrace.postgres.relations import read_published

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
    types = read_types(connection, relations)
    row = connection.execute(f"SELECT current_database(), {CURRENT_LSN}").fetchone()
    assert row is not None
    return PublishedSchemas(
        database=row[0],
        lsn=Lsn.parse(row[1]),
        tables=tuple(
            Version(relation=relation, types=used(relation, types)) for relation in relations
        ),
    )
