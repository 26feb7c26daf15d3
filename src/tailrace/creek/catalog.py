"""The published tables at present, with or without changes so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.creek.versions import Version, types_of
from tailrace.position import Lsn
from tailrace.postgres.catalog import CURRENT_LSN, read_types
from tailrace.postgres.publication import read_publication
from tailrace.postgres.relations import read_published

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
    types = read_types(connection, relations)
    row = connection.execute(f"SELECT current_database(), {CURRENT_LSN}").fetchone()
    assert row is not None
    return PublishedSchemas(
        database=row[0],
        lsn=Lsn.parse(row[1]),
        tables=tuple(
            Version(relation=relation, types=types_of(relation, types)) for relation in relations
        ),
    )
