"""Keeps the schemas of one pipeline current: in memory, in `_creek.avro_schemas`, in JetStream.

The log has the columns of a table with its first change. For tables without changes so far, the
catalog is read every few seconds, and at once when `_creek.add_table` notifies. If the role may not
write to `_creek`, a warning is logged once; memory and log answer requests without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import psycopg
import structlog

from tailrace.creek.catalog import read_catalog
from tailrace.creek.members import Members
from tailrace.creek.sql import CHANNEL, save
from tailrace.creek.stream import SchemaItem, SchemaStream
from tailrace.creek.table_log import TableLog, added_oid
from tailrace.errors import PostgresRefusedError
from tailrace.postgres.session import Session
from tailrace.schemas.schedule import CatalogSchedule
from tailrace.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection, Notify

    from tailrace.config import Config
    from tailrace.creek.catalog import PublishedSchemas
    from tailrace.creek.versions import Version, Versions
    from tailrace.log.relation_history import LogCursor


class Watcher:
    """Follows the log and the catalog."""

    def __init__(
        self,
        config: Config,
        name: str,
        versions: Versions,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        pipeline = config.pipelines[name]
        self._publication = config.source.publication
        self._layout = pipeline.creek_layout
        self._tables = Tables(pipeline.tables)
        self._versions = versions
        self._session = Session(config, "tailrace creek schemas")
        self._listening: Connection | None = None
        self._log = TableLog(config.log.path, self._publication)
        self._members = Members(config.data / "creek", name, log=self._log, clock=clock)
        self._stream = SchemaStream(name, pipeline)
        self._schedule = CatalogSchedule(clock)
        self._notified: set[int] = set()
        """Oids of tables that notifications say were added since the last catalog read."""
        self._unpublished: list[Version] = []
        self._cursor: LogCursor | None = None
        self._catalog: PublishedSchemas | None = None
        self._published: tuple[Version, ...] | None = None
        self._saved: dict[str, str] = {}
        self._refusal = ""
        self._events = structlog.get_logger()

    def changed(self) -> bool:
        """Whether the log or the catalog has something that is not published yet."""
        self._read_log()
        with self._session.use() as connection:
            self._listen(connection)
            if self._catalog is None or self._schedule.due() or self._members.joining:
                self._read_catalog(connection)
        assert self._catalog is not None
        changed = self._catalog.tables != self._published
        return changed or bool(self._unpublished) or self._members.unannounced

    def publish(self) -> list[str]:
        """Store and publish what is new; the subjects that got a schema."""
        self._read_log()
        with self._session.use() as connection:
            self._listen(connection)
            catalog = self._read_catalog(connection)
            self._save(connection, catalog)
        self._members.save()
        self._stream.create_streams()
        subjects = asyncio.run(self._stream.publish(self._items(catalog)))
        self._members.announced()
        if not self._members.joining:
            self._unpublished, self._published = [], catalog.tables
            self._versions.save(self._cursor)
        self._members.save()
        if subjects:
            self._events.info("creek.schemas_published", subjects=subjects)
        return subjects

    def close(self) -> None:
        """Close the connection to PostgreSQL."""
        self._session.close()

    def _read_log(self) -> None:
        self._versions.read()
        versions, self._cursor = self._versions.take()
        self._unpublished += versions

    def _listen(self, connection: Connection) -> None:
        """Listen for added and removed tables. A standby has no LISTEN: catalog reads find them."""
        if connection is self._listening:
            return
        connection.add_notify_handler(self._on_notify)
        with contextlib.suppress(psycopg.Error):
            connection.execute(f"LISTEN {CHANNEL}".encode())
        self._listening = connection

    def _on_notify(self, notify: Notify) -> None:
        self._schedule.request()
        oid = added_oid(notify.payload.encode(), self._publication)
        if oid is not None:
            self._notified.add(oid)

    def _read_catalog(self, connection: Connection) -> PublishedSchemas:
        with self._schedule.reading():
            # Before the catalog: every table that joined before this end is in the catalog.
            log_end = self._log.end()
            notified, self._notified = self._notified, set()
            self._catalog = read_catalog(connection, self._publication, self._tables)
            self._members.update(self._catalog, log_end, notified)
        return self._catalog

    def _save(self, connection: Connection, catalog: PublishedSchemas) -> None:
        """Store the schemas that the table may lack, those of earlier runs included.

        Requests are answered with those of the catalog only afterwards: the table has the time
        when each was first known, the catalog has not.
        """
        schemas = self._versions.known()
        schemas += [stored for table in catalog.tables for stored in self._versions.dated(table)]
        unsaved = {
            stored.fingerprint: stored
            for stored in schemas
            if self._saved.get(stored.fingerprint) != stored.schema
        }
        if not unsaved:
            return
        try:
            for stored in save(connection, unsaved.values()):
                self._versions.remember(stored)
        except PostgresRefusedError as error:
            for stored in unsaved.values():
                self._versions.remember(stored)
            if str(error) != self._refusal:
                self._refusal = str(error)
                self._events.warning(
                    "creek.schemas_not_saved",
                    code=error.code,
                    reason=str(error),
                    hint="The log and the data folder answer requests for schemas. To store them "
                    "in the database as well: tailrace init --creek",
                )
        else:
            self._refusal = ""
            self._saved |= {name: stored.schema for name, stored in unsaved.items()}

    def _items(self, catalog: PublishedSchemas) -> dict[str, list[SchemaItem]]:
        """The schemas of each subject in order, the present one last.

        The log has partitions too, but sends their changes under the name of the root: only tables
        of the catalog have a subject. Tables whose first LSN is not known yet are left out.
        """
        return {
            self._layout.subject(
                "schema", catalog.database, table.relation.namespace, table.relation.name
            ): self._table_items(table)
            for table in catalog.tables
            if not self._members.is_joining(table.relation)
        }

    def _table_items(self, table: Version) -> list[SchemaItem]:
        logged = [
            SchemaItem(self._versions.dated(version)[0], version.lsn)
            for version in self._unpublished
            if version.relation.oid == table.relation.oid
        ]
        present = SchemaItem(self._versions.dated(table)[0])
        first_lsn = self._members.first_lsn(table.relation)
        lsns = [item.lsn for item in logged if item.identity == present.identity]
        older = [item for item in logged if item.identity != present.identity]
        newest = SchemaItem(
            present.stored,
            first_lsn or next(reversed(lsns), None),
            joined=first_lsn is not None,
        )
        return [*older, newest]
