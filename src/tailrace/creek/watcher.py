"""Keeps the schemas of one pipeline current: in memory, in `_creek.avro_schemas`, in JetStream.

The log tells of a table's columns with the first change that has them. The catalog is looked at
every few seconds, and at once when `_creek.add_table` says so, for tables that have had no change
yet. A role that may not write to `_creek` is told of once; memory and log answer without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import psycopg
import structlog

from tailrace.creek.catalog import read_catalog
from tailrace.creek.members import Members, added_oid
from tailrace.creek.sql import CHANNEL, save
from tailrace.creek.stream import Item, SchemaStream
from tailrace.encode.creek import schema as creek
from tailrace.errors import PostgresRefusedError
from tailrace.postgres.session import Session
from tailrace.tables import Tables

if TYPE_CHECKING:
    from psycopg import Connection, Notify

    from tailrace.config import Config
    from tailrace.creek.catalog import PublishedSchemas
    from tailrace.creek.versions import Version, Versions
    from tailrace.log.relation_history import Place

_CATALOG_S = 5.0
_REST = 20


class Watcher:
    """Follows the log and the catalog."""

    def __init__(self, config: Config, name: str, versions: Versions) -> None:
        pipeline = config.pipelines[name]
        self._publication = config.source.publication
        self._namespace = pipeline.namespace
        self._tables = Tables(pipeline.tables)
        self._versions = versions
        self._session = Session(config, "tailrace creek schemas")
        self._heard: Connection | None = None
        self._members = Members(
            config.data / "creek", name, publication=self._publication, log=config.log.path
        )
        self._shelf = SchemaStream(name, pipeline)
        self._look_at = 0.0
        self._added: set[int] = set()
        self._stated: list[Version] = []
        self._place: Place | None = None
        self._catalog: PublishedSchemas | None = None
        self._told: tuple[Version, ...] | None = None
        self._saved: dict[str, str] = {}
        self._refused = ""
        self._events = structlog.get_logger()

    def news(self) -> bool:
        """Whether the log or the catalog says something that was not published yet."""
        self._read_log()
        with self._session.use() as connection:
            self._listen(connection)
            if time.monotonic() >= self._look_at or self._members.unsettled:
                self._look(connection)
        assert self._catalog is not None
        changed = self._catalog.tables != self._told
        return changed or bool(self._stated) or self._members.news

    def publish(self) -> list[str]:
        """Store and publish what is new; the subjects that got a schema."""
        self._read_log()
        with self._session.use() as connection:
            self._listen(connection)
            catalog = self._look(connection)
            self._save(connection, catalog)
        self._members.save()
        self._shelf.open()
        changed = asyncio.run(self._shelf.put(self._items(catalog)))
        self._members.announced()
        if not self._members.unsettled:
            self._stated, self._told = [], catalog.tables
            self._versions.keep(self._place)
        self._members.save()
        if changed:
            self._events.info("creek.schemas_published", subjects=changed)
        return changed

    def close(self) -> None:
        """Hang up."""
        self._session.close()

    def _read_log(self) -> None:
        self._versions.read()
        stated, self._place = self._versions.take()
        self._stated += stated

    def _listen(self, connection: Connection) -> None:
        """Be told when a table comes or goes. A standby tells nobody; its looks have to do."""
        if connection is self._heard:
            return
        connection.add_notify_handler(self._on_notify)
        with contextlib.suppress(psycopg.Error):
            connection.execute(f"LISTEN {CHANNEL}".encode())
        self._heard = connection

    def _on_notify(self, notify: Notify) -> None:
        self._look_at = 0.0
        added = added_oid(notify.payload.encode(), self._publication)
        if added is not None:
            self._added.add(added)

    def _look(self, connection: Connection) -> PublishedSchemas:
        began = time.monotonic()
        end = self._members.end()
        added, self._added = self._added, set()
        self._catalog = read_catalog(connection, self._publication, self._tables)
        self._members.look(self._catalog, end, added)
        # Thousands of tables are looked at more rarely: never more than a part of the time.
        self._look_at = began + max(_CATALOG_S, _REST * (time.monotonic() - began))
        return self._catalog

    def _save(self, connection: Connection, catalog: PublishedSchemas) -> None:
        """Store what the table may lack, the schemas of earlier runs as well."""
        for table in catalog.tables:
            self._versions.add(table)
        lacking = [
            stored
            for stored in self._versions.known()
            if self._saved.get(stored.fingerprint) != stored.schema
        ]
        if not lacking:
            return
        try:
            for stored in save(connection, lacking):
                self._versions.remember(stored)
        except PostgresRefusedError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                self._events.warning(
                    "creek.schemas_not_saved",
                    code=error.code,
                    reason=str(error),
                    hint="The log and the data folder answer for them. To store them here, too: "
                    "tailrace init --creek",
                )
        else:
            self._refused = ""
            self._saved |= {stored.fingerprint: stored.schema for stored in lacking}

    def _items(self, catalog: PublishedSchemas) -> dict[str, list[Item]]:
        """The schemas of each subject in their order, the one of today last.

        The stream states partitions too, and sends their changes under the root's name: only what
        the catalog lists has a subject. One whose beginning is not clear yet is left for later.
        """
        found: dict[str, list[Item]] = {}
        for table in catalog.tables:
            relation = table.relation
            if self._members.waiting(relation):
                continue
            stated = [
                Item(self._versions.dated(each), each.lsn)
                for each in self._stated
                if each.relation.oid == relation.oid
            ]
            today = Item(self._versions.dated(table))
            since = [each.lsn for each in stated if each.mark == today.mark]
            begins = self._members.begins(relation)
            subject = creek.subject(
                self._namespace, catalog.database, "schema", relation.namespace, relation.name
            )
            older = [each for each in stated if each.mark != today.mark]
            last = Item(
                today.stored, begins or next(reversed(since), None), joined=begins is not None
            )
            found[subject] = [*older, last]
        return found
