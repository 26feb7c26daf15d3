"""Which of a pipeline's tables PostgreSQL publishes, now or at its last answer."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError, PostgresRefusedError
from tailrace.postgres.catalog import LOCK_TIMEOUT
from tailrace.postgres.connection import connect
from tailrace.postgres.names import TableName
from tailrace.postgres.publication import read_publication
from tailrace.postgres.relations import read_published
from tailrace.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from tailrace.config import Config
    from tailrace.postgres.publication import PublicationState, PublishedTable
    from tailrace.schema import Relation


@dataclass(frozen=True, slots=True)
class Listing:
    """The tables of a database that clients can request."""

    database: str
    tables: frozenset[TableName]


class PublishedTables:
    """Reads the publication, and remembers the last listing."""

    def __init__(self, config: Config, pipeline: str) -> None:
        self._dsn = config.source.dsn.get_secret_value()
        self._publication = config.source.publication
        self._timeout_s = config.capture.connect_timeout_s
        self._tables = Tables(config.pipelines[pipeline].tables)
        self.last_listing: Listing | None = None
        """For replies while PostgreSQL does not answer: it cannot list a publication while ALTER
        TABLE holds a lock on one of its tables."""

    def listing(self) -> Listing:
        """The tables that are published and selected by the pipeline."""
        with self._source() as connection:
            published = [member.table for member in self._state(connection).tables]
            tables = [name for name in published if self._tables.match(name.namespace, name.name)]
            self.last_listing = Listing(connection.info.dbname, frozenset(tables))
        return self.last_listing

    def published(self, table: TableName) -> tuple[Relation, PublishedTable]:
        """The table as the stream describes it, and its row filter and columns."""
        with self._source() as connection:
            state = self._state(connection)
            relations = {
                TableName(each.relation.namespace, each.relation.name): each.relation
                for each in read_published(connection, state)
            }
        members = {member.table: member for member in state.tables}
        if table not in members or table not in relations:
            raise ConfigError(
                f"{table} is no longer in publication {self._publication}",
                hint=f"Add it again: tailrace table add {table.quoted}",
            )
        return relations[table], members[table]

    @contextlib.contextmanager
    def _source(self) -> Iterator[Connection]:
        connection = connect(self._dsn, connect_timeout_s=self._timeout_s)
        with contextlib.closing(connection):
            connection.execute(LOCK_TIMEOUT)
            yield connection

    def _state(self, connection: Connection) -> PublicationState:
        state = read_publication(connection, self._publication)
        if state is None:
            raise PostgresRefusedError(
                f"there is no publication {self._publication!r}", hint="Run: tailrace init"
            )
        return state
