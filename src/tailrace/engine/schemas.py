"""Schema documents: what a table looks like, for consumers of a bridge.

One document a table in the JetStream key-value bucket `schemas`, and the same bytes as a message on
`schema.<key>` whenever it changes. Documents are made from the catalog, at the start, when the log
holds a Relation message that is new or differs from the one before, and every minute, because a
new default or NOT NULL is not in the stream. A document that says the same as the stored one is not
written again, so the bucket's history is the table's history.

The message goes out before the bucket is written: a crash between the two repeats it and loses
nothing. It needs no stream; who was not listening reads the bucket.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import nats.js.errors
import orjson
import ormsgpack
import psycopg
import structlog
from nats.js.api import KeyValueConfig

from tailrace.capture.connection import connect, failure
from tailrace.capture.publication import TableName, read_publication
from tailrace.config import NatsSink
from tailrace.encode.subject import table_key
from tailrace.engine.jetstream import bucket_of, connected
from tailrace.errors import SinkRefusedError, TailraceError
from tailrace.log.reader import Log
from tailrace.log.segment import walk
from tailrace.log.store import LocalStore
from tailrace.tables import Tables
from tailrace.wire import pgoutput

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from nats.js.kv import KeyValue
    from psycopg import Connection

    from tailrace.capture.publication import PublicationState, PublishedTable
    from tailrace.config import Config, Pipeline
    from tailrace.log.mark import Mark
    from tailrace.schema import Relation

    Encoding = Literal["msgpack", "json"]

BUCKET = "schemas"
_HISTORY = 10
_SUBJECT = "schema.{key}"
_LOOK_S = 1.0
_CATALOG_S = 60.0
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A table as the catalog describes it, without the time."""

    table: TableName
    columns: tuple[dict[str, Any], ...]

    def fields(self, timestamp: int) -> dict[str, Any]:
        """The document's content."""
        return {
            "table": self.table.name,
            "schema": str(self.table),
            "timestamp": timestamp,
            "columns": list(self.columns),
        }

    def same_as(self, stored: object) -> bool:
        """Whether a stored document says the same, at whatever time."""
        return isinstance(stored, dict) and stored == self.fields(stored.get("timestamp", 0))


def read_documents(connection: Connection, publication: str, tables: Tables) -> list[Document]:
    """The documents of the published tables that are wanted, from the catalog as it is now."""
    state = read_publication(connection, publication)
    if state is None:
        return []
    wanted = [
        published
        for published in state.tables
        if tables.match(published.table.namespace, published.table.name)
    ]
    names = [table.table.namespace for table in wanted], [table.table.name for table in wanted]
    try:
        # Pinned, so that a default reads the same whatever the role's own path is.
        connection.execute("SET search_path TO pg_catalog, public")
        rows = connection.execute(_COLUMNS, names).fetchall()
    except psycopg.Error as error:
        raise failure(connection, error) from error
    found: dict[TableName, list[dict[str, Any]]] = {}
    for namespace, name, generated, column in rows:
        found.setdefault(TableName(namespace, name), []).append(column | {"generated": generated})
    return [
        Document(table=table.table, columns=_sent(found[table.table], table, state))
        for table in wanted
        if table.table in found
    ]


def _sent(
    columns: list[dict[str, Any]], table: PublishedTable, publication: PublicationState
) -> tuple[dict[str, Any], ...]:
    """The columns that the stream carries: a consumer never sees the others."""

    def sent(column: dict[str, Any]) -> bool:
        if table.columns is not None:
            return column["name"] in table.columns
        generated = column["generated"]
        return not generated or (generated == "s" and publication.generated_columns)

    return tuple(
        {name: value for name, value in column.items() if name != "generated"}
        for column in columns
        if sent(column)
    )


# Types without modifiers, as information_schema has them, but arrays and user types by name.
_COLUMNS = """
SELECT n.nspname, c.relname, a.attgenerated::text, jsonb_build_object(
           'name', a.attname, 'position', a.attnum,
           'data_type', format_type(a.atttypid, NULL),
           'is_nullable', NOT (a.attnotnull OR (t.typtype = 'd' AND t.typnotnull)),
           'column_default',
           CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END)
FROM unnest(%s::text[], %s::text[]) wanted (namespace, name)
JOIN pg_namespace n ON n.nspname = wanted.namespace
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
ORDER BY 1, 2, a.attnum
"""


class Publisher:
    """Keeps the documents of one pipeline's tables current."""

    def __init__(self, config: Config, pipeline: Pipeline) -> None:
        self._config = config
        self._sink: NatsSink = pipeline.sink
        self._tables = Tables(pipeline.tables)
        self._encoding: Encoding = pipeline.format
        self._settings = KeyValueConfig(
            bucket=BUCKET,
            description="What tables look like: a document each.",
            history=_HISTORY,
            replicas=self._sink.stream.replicas,
        )
        self._events = structlog.get_logger()

    def publish(self) -> list[str]:
        """Read the catalog and publish what has changed; the keys of that."""
        source = self._config.source
        with connect(
            source.dsn.get_secret_value(),
            application_name="tailrace schemas",
            connect_timeout_s=self._config.capture.connect_timeout_s,
        ) as connection:
            documents = read_documents(connection, source.publication, self._tables)
        changed = asyncio.run(self._store(documents))
        if changed:
            self._events.info("schemas.published", keys=changed)
        return changed

    async def _store(self, documents: Sequence[Document]) -> list[str]:
        changed = []
        async with connected(self._sink) as client:
            try:
                bucket = await bucket_of(client.jetstream(), self._settings)
                for document in documents:
                    name = table_key(document.table.namespace, document.table.name)
                    if document.same_as(await self._stored(bucket, name)):
                        continue
                    value = self._encoded(document.fields(int(time.time())))
                    await client.publish(_SUBJECT.format(key=name), value)
                    await client.flush()
                    await bucket.put(name, value)
                    changed.append(name)
            except nats.js.errors.ServiceUnavailableError:
                raise
            except nats.js.errors.APIError as error:
                raise SinkRefusedError(f"JetStream says: {error.description}") from error
        return changed

    async def _stored(self, bucket: KeyValue, name: str) -> object:
        try:
            value = (await bucket.get(name)).value or b""
        except nats.js.errors.KeyNotFoundError:
            return None
        try:
            return ormsgpack.unpackb(value) if self._encoding == "msgpack" else orjson.loads(value)
        except ValueError:
            return None

    def _encoded(self, fields: dict[str, Any]) -> bytes:
        return ormsgpack.packb(fields) if self._encoding == "msgpack" else orjson.dumps(fields)


class Watch:
    """Looks through what the log has gained for Relation messages that say something new.

    Headers tell which entries hold any, so the rest of the log is not read. Begins at the log's
    end: what was before is in the catalog already.
    """

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._at: tuple[int, int] | None = None
        self._seen: dict[int, Relation] = {}

    def changed(self) -> bool:
        """Whether a relation is new or differs since the last look."""
        log = Log(self._store)
        end = log.end()
        if self._at is None:
            self._at = (end.sequence, end.offset)
            return False
        found = False
        for relation in self._relations(log, end, self._at):
            found = found or self._seen.get(relation.oid) != relation
            self._seen[relation.oid] = relation
        self._at = (end.sequence, end.offset)
        return found

    def _relations(self, log: Log, end: Mark, start: tuple[int, int]) -> list[Relation]:
        found = []
        for name in log.visible_segments(end):
            if name.sequence < start[0]:
                continue
            begin = start[1] if name.sequence == start[0] else log.first_entry(name)
            limit = end.offset if name.sequence == end.sequence else None
            for placed in walk(self._store, name, begin, limit, bodies=False):
                if placed.entry.schemas:
                    [whole] = walk(self._store, name, placed.start, placed.end)
                    parsed = map(pgoutput.parse, whole.entry.schema_messages())
                    found += [each for each in parsed if isinstance(each, pgoutput.Relation)]
        return found


def publishers(config: Config) -> list[Publisher]:
    """One for each pipeline whose consumers expect schema documents."""
    return [
        Publisher(config, pipeline)
        for pipeline in config.pipelines.values()
        if pipeline.shape == "bridge" and isinstance(pipeline.sink, NatsSink)
    ]


def run(config: Config, stop: threading.Event) -> None:
    """Keep all documents current until told to stop, whatever is down meanwhile."""
    found = publishers(config)
    watch = Watch(LocalStore(config.log.path))
    if found:
        follow([publisher.publish for publisher in found], watch.changed, stop)


def follow(
    publish: Sequence[Callable[[], object]], changed: Callable[[], bool], stop: threading.Event
) -> None:
    """Publish at the start, on a change and every minute; after a failure, soon again."""
    events = structlog.get_logger()
    due, failures = 0.0, 0
    while not stop.is_set():
        try:
            # Looked at before the catalog is: a change between the two is seen by one of them.
            news = changed()
        except (TailraceError, OSError):
            # No log yet, or a segment that retention has just removed: the minute's look is left.
            news = False
        if news or time.monotonic() >= due:
            try:
                for each in publish:
                    each()
                due, failures = time.monotonic() + _CATALOG_S, 0
            except TailraceError as error:
                delay_s = _RETRY_S[min(failures, len(_RETRY_S) - 1)]
                due, failures = time.monotonic() + delay_s, failures + 1
                events.warning(
                    "schemas.waiting", code=error.code, reason=str(error), again_in_s=delay_s
                )
        stop.wait(_LOOK_S)
