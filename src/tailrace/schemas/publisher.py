"""Keeps the schema documents of bridges current, so that consumers find every version of a table.

The log has every change of columns, with the position from which it applies. The catalog is read
every few seconds for what the stream does not show. `tailrace.schemas.documents` decides what to
write, `tailrace.schemas.store` writes it.

The log cursor is stored in the data folder after everything before it is in the bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import structlog

from tailrace.encode.shapes.registry import SHAPES
from tailrace.errors import TailraceError
from tailrace.jetstream.names import table_key
from tailrace.jetstream.settings import JetStreamSettings
from tailrace.log.relation_history import LogCursor, RelationHistory
from tailrace.log.store import LocalStore
from tailrace.postgres.connection import connect
from tailrace.postgres.session import Session
from tailrace.schemas.catalog import document_key, read_catalog
from tailrace.schemas.documents import additions, own_documents
from tailrace.schemas.follow import follow
from tailrace.schemas.schedule import CatalogSchedule
from tailrace.schemas.store import DocumentStore
from tailrace.state_file import StateFile
from tailrace.tables import Tables

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from tailrace.config import Config, Pipeline
    from tailrace.log.relation_history import RelationVersion
    from tailrace.schemas.catalog import ColumnCatalog
    from tailrace.schemas.documents import Document

_APPLICATION = "tailrace schemas"


class Publisher:
    """Publishes the schema documents of one pipeline's tables."""

    def __init__(
        self,
        config: Config,
        pipeline: Pipeline,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        assert pipeline.format != "avro"
        assert pipeline.format != "avro-plain"
        name = next(name for name, each in config.pipelines.items() if each == pipeline)
        self._config = config
        self._tables = Tables(pipeline.tables)
        self._wall_clock = wall_clock
        self._store = DocumentStore(pipeline.jetstream, pipeline.format)
        self._file = StateFile(config.data / "schemas" / name, LogCursor)
        self._history = RelationHistory(LocalStore(config.log.path), self._file.read_or(None))
        self._unpublished: list[RelationVersion] = []
        self._session = Session(config, _APPLICATION)
        self._schedule = CatalogSchedule(clock)
        self._published: tuple[Document, ...] | None = None
        self._events = structlog.get_logger()

    def changed(self) -> bool:
        """Whether the log or the catalog has something that is not published yet."""
        self._read_log()
        if not self._schedule.due():
            return bool(self._unpublished)
        with self._schedule.reading(), self._session.use() as connection:
            catalog = read_catalog(connection, self._config.source.publication, self._tables)
        return bool(self._unpublished) or catalog.documents != self._published

    def close(self) -> None:
        """Close the connection to PostgreSQL."""
        self._session.close()

    def publish(self) -> list[str]:
        """Publish what has changed in the log and in the catalog; the keys of these tables."""
        self._read_log()
        catalog = self._read_catalog()
        keys = asyncio.run(
            self._store.write(
                self._keys(catalog), lambda key, stored: self._additions(key, stored, catalog)
            )
        )
        self._published, self._unpublished = catalog.documents, []
        if self._history.cursor is not None:
            self._file.write(self._history.cursor)
        if keys:
            self._events.info("schemas.published", keys=keys)
        return keys

    def _read_log(self) -> None:
        # There is no log yet, or retention has just removed a segment: the next call reads on.
        with contextlib.suppress(TailraceError, OSError):
            self._unpublished += [
                version
                for version in self._history.read()
                if self._tables.match(version.relation.namespace, version.relation.name)
            ]

    def _read_catalog(self) -> ColumnCatalog:
        source = self._config.source
        types = {
            column.type_oid for version in self._unpublished for column in version.relation.columns
        }
        with connect(
            source.dsn.get_secret_value(),
            application_name=_APPLICATION,
            connect_timeout_s=self._config.capture.connect_timeout_s,
        ) as connection:
            return read_catalog(connection, source.publication, self._tables, types)

    def _keys(self, catalog: ColumnCatalog) -> list[str]:
        """The keys of the tables in the catalog and in the log, each once."""
        present = [document_key(document) for document in catalog.documents]
        logged = [
            table_key(version.relation.namespace, version.relation.name)
            for version in self._unpublished
        ]
        return list(dict.fromkeys([*present, *logged]))

    def _additions(
        self, key: str, stored: list[dict[str, Any]], catalog: ColumnCatalog
    ) -> list[dict[str, Any]]:
        """The documents that a key lacks."""
        cursor = self._history.cursor
        if cursor is None and any("log_id" in document for document in stored):
            # The log is not there yet: whether it is the one of these documents is not known.
            return []
        log_id = cursor.log_id if cursor is not None else ""
        known = own_documents(stored, log_id) or stored[-1:]
        claims = catalog.claims(key, self._unpublished, known, self._history.type_names)
        return additions(stored, claims, timestamp=int(self._wall_clock()), log_id=log_id)


def publishers(config: Config) -> list[Publisher]:
    """One publisher per pipeline whose consumers expect schema documents."""
    return [
        Publisher(config, pipeline)
        for pipeline in config.pipelines.values()
        if SHAPES.find(pipeline.shape).schema_documents
        and isinstance(pipeline.sink, JetStreamSettings)
    ]


def run(config: Config, stop: threading.Event) -> None:
    """Keep all documents current until stopped, whatever is unreachable meanwhile."""
    all_publishers = publishers(config)
    if not all_publishers:
        return
    try:
        follow(
            [publisher.publish for publisher in all_publishers],
            lambda: any(publisher.changed() for publisher in all_publishers),
            stop,
        )
    finally:
        for publisher in all_publishers:
            publisher.close()
