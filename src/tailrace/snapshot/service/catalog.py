"""What PostgreSQL publishes of a pipeline's tables, now or when it last said."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError, PostgresRefusedError
from tailrace.postgres.catalog import LOCK_TIMEOUT
from tailrace.postgres.connection import connect
from tailrace.postgres.publication import TableName, read_publication
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
    """The tables of a database that may be asked for."""

    database: str
    tables: frozenset[TableName]


class PublishedTables:
    """Asks PostgreSQL, and remembers the last answer."""

    def __init__(self, config: Config, pipeline: str) -> None:
        self._dsn = config.source.dsn.get_secret_value()
        self._publication = config.source.publication
        self._timeout_s = config.capture.connect_timeout_s
        self._wanted = Tables(config.pipelines[pipeline].tables)
        self.known: Listing | None = None
        """For when PostgreSQL can not tell: it reads no publication whose tables somebody alters,
        and whoever asks shall have an answer."""

    def listing(self) -> Listing:
        """What is published and taken by the pipeline."""
        with self._source() as connection:
            names = [listed.table for listed in self._state(connection).tables]
            wanted = [name for name in names if self._wanted.match(name.namespace, name.name)]
            self.known = Listing(connection.info.dbname, frozenset(wanted))
        return self.known

    def published(self, table: TableName) -> tuple[Relation, PublishedTable]:
        """The table as the stream describes it, and what the publication holds back of it."""
        with self._source() as connection:
            state = self._state(connection)
            relations = {
                TableName(each.relation.namespace, each.relation.name): each.relation
                for each in read_published(connection, state)
            }
        listed = {each.table: each for each in state.tables}
        if table not in listed or table not in relations:
            raise ConfigError(f"{table} is not published any more")
        return relations[table], listed[table]

    @contextlib.contextmanager
    def _source(self) -> Iterator[Connection]:
        connection = connect(self._dsn, connect_timeout_s=self._timeout_s)
        with contextlib.closing(connection):
            connection.execute(LOCK_TIMEOUT)
            yield connection

    def _state(self, connection: Connection) -> PublicationState:
        state = read_publication(connection, self._publication)
        if state is None:
            raise PostgresRefusedError(f"there is no publication {self._publication!r}")
        return state
