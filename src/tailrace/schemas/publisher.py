"""Schema documents for consumers of a bridge: every version of a table, where they look for it.

One key a table in the JetStream key-value bucket `schemas`, whose history is the table's history,
and the same bytes as a message on `schema.<key>` whenever something is written. A change of columns
is told by the log, with the position from which it holds; the catalog is looked at every few
seconds for what the stream does not tell. `tailrace.schemas.documents` says what is written when.

The message goes out before the bucket is written: a crash between the two repeats it and loses
nothing. It needs no stream; who was not listening reads the bucket. How far the log was read is
kept in the data folder, and moves on when everything before it is in the bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Literal

import nats.js.errors
import orjson
import ormsgpack
import structlog
from nats.js.api import KeyValueConfig
from nats.js.kv import KV_OP

from tailrace.config import NatsSink
from tailrace.errors import SinkRefusedError, SinkUnreachableError, TailraceError
from tailrace.jetstream.client import bucket_of, connected
from tailrace.jetstream.names import table_key
from tailrace.log.relation_history import Place, Statements
from tailrace.log.store import LocalStore
from tailrace.position import Position
from tailrace.postgres.connection import connect
from tailrace.postgres.session import Session
from tailrace.schemas.documents import Claim, additions, holding, read_catalog
from tailrace.tables import Tables

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nats.js import JetStreamContext
    from nats.js.kv import KeyValue

    from tailrace.config import Config, Pipeline
    from tailrace.log.relation_history import Statement
    from tailrace.schemas.documents import ColumnCatalog, Document

    Encoding = Literal["msgpack", "json"]

BUCKET = "schemas"
HISTORY = 64
"""The most that a bucket can keep."""
_SUBJECT = "schema.{key}"
_LOOK_S = 1.0
_CATALOG_S = 5.0
_REST = 20
_ALL_S = 60.0
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class Publisher:
    """Keeps the documents of one pipeline's tables current."""

    def __init__(self, config: Config, pipeline: Pipeline) -> None:
        self._config = config
        self._sink: NatsSink = pipeline.nats
        self._tables = Tables(pipeline.tables)
        assert pipeline.format != "avro"
        self._encoding: Encoding = pipeline.format
        self._settings = KeyValueConfig(
            bucket=BUCKET,
            description="What tables look like: a document for each version.",
            history=HISTORY,
            replicas=self._sink.stream.replicas,
        )
        name = next(name for name, each in config.pipelines.items() if each == pipeline)
        self._file = _File(config.data / "schemas", name)
        self._statements = Statements(LocalStore(config.log.path), self._file.read())
        self._unpublished: list[Statement] = []
        self._session = Session(config, "tailrace schemas")
        self._look_at = 0.0
        self._published: tuple[Document, ...] | None = None
        self._stored: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self._events = structlog.get_logger()

    def news(self) -> bool:
        """Whether the log or the catalog says something that was not published yet."""
        self._read_log()
        began = time.monotonic()
        if began < self._look_at:
            return bool(self._unpublished)
        self._look_at = began + _CATALOG_S
        with self._session.use() as connection:
            catalog = read_catalog(connection, self._config.source.publication, self._tables)
        # Thousands of tables are looked at more rarely: never more than a part of the time.
        self._look_at = began + max(_CATALOG_S, _REST * (time.monotonic() - began))
        return bool(self._unpublished) or catalog.documents != self._published

    def close(self) -> None:
        """Hang up."""
        self._session.close()

    def publish(self) -> list[str]:
        """Publish what has changed in the log and in the catalog; the keys of that."""
        self._read_log()
        source = self._config.source
        types = {
            column.type_oid for stated in self._unpublished for column in stated.relation.columns
        }
        with connect(
            source.dsn.get_secret_value(),
            application_name="tailrace schemas",
            connect_timeout_s=self._config.capture.connect_timeout_s,
        ) as connection:
            catalog = read_catalog(connection, source.publication, self._tables, types)
        changed = asyncio.run(self._store(catalog))
        self._published, self._unpublished = catalog.documents, []
        if self._statements.place is not None:
            self._file.write(self._statements.place)
        if changed:
            self._events.info("schemas.published", keys=changed)
        return changed

    def _read_log(self) -> None:
        # No log yet, or a segment that retention has just removed: the next look is soon.
        with contextlib.suppress(TailraceError, OSError):
            self._unpublished += [
                stated
                for stated in self._statements.read()
                if self._tables.match(stated.relation.namespace, stated.relation.name)
            ]

    async def _store(self, catalog: ColumnCatalog) -> list[str]:
        changed = []
        async with connected(self._sink) as client:
            try:
                bucket = await bucket_of(client.jetstream(), self._settings)
                for key in self._keys(catalog):
                    written = 0
                    for value in await self._additions(client.jetstream(), bucket, key, catalog):
                        await client.publish(_SUBJECT.format(key=key), value)
                        await client.flush()
                        await self._write(bucket, key, value)
                        written += 1
                    if written:
                        changed.append(key)
            except nats.js.errors.KeyWrongLastSequenceError as error:
                # Another pipeline tells of the same table.
                self._stored.clear()
                raise SinkUnreachableError("the bucket of schemas is being written to") from error
            except nats.js.errors.ServiceUnavailableError:
                raise
            except nats.js.errors.APIError as error:
                raise SinkRefusedError(f"JetStream says: {error.description}") from error
        return changed

    def _keys(self, catalog: ColumnCatalog) -> list[str]:
        tables = [(each.table.namespace, each.table.name) for each in catalog.documents]
        stated = [(each.relation.namespace, each.relation.name) for each in self._unpublished]
        return list(dict.fromkeys(table_key(*name) for name in [*tables, *stated]))

    async def _additions(
        self, jetstream: JetStreamContext, bucket: KeyValue, key: str, catalog: ColumnCatalog
    ) -> list[bytes]:
        """The documents that a key lacks, encoded."""
        stored = await self._documents(jetstream, bucket, key)
        now = [each for each in catalog.documents if _key(each) == key]
        published = {each.relation_id for each in catalog.documents}
        claims: list[Claim] = []
        for stated in self._unpublished:
            relation = stated.relation
            # The stream states partitions as well, and sends their changes under the root's name.
            known = bool(stored or now or claims) or relation.oid in published
            if known and table_key(relation.namespace, relation.name) == key:
                before = holding(stored, stated.position)
                document = catalog.of_relation(relation, self._statements.type_names, before)
                claims.append(
                    Claim(document=document, position=stated.position, names_and_types_only=True)
                )
        claims += [Claim(document=each, position=Position(catalog.lsn)) for each in now]
        found = additions(stored, claims, timestamp=int(time.time()))
        return [self._encoded(fields) for fields in found]

    async def _documents(
        self, jetstream: JetStreamContext, bucket: KeyValue, key: str
    ) -> list[dict[str, Any]]:
        """What is stored under a key, oldest first. Read again when somebody else has written."""
        try:
            last = (await bucket.get(key)).revision or 0
        except nats.js.errors.KeyNotFoundError:
            self._stored.pop(key, None)
            return []
        known = self._stored.get(key)
        if known is None or known[0] != last:
            decoded = [self._decoded(value) for value in await _history(jetstream, key)]
            documents = [document for document in decoded if isinstance(document, dict)]
            self._stored[key] = last, documents
        return self._stored[key][1]

    async def _write(self, bucket: KeyValue, key: str, value: bytes) -> None:
        last, documents = self._stored.get(key, (0, []))
        if last:
            revision = await bucket.update(key, value, last)
        else:
            revision = await bucket.create(key, value)
        self._stored[key] = revision, [*documents, self._decoded(value)]

    def _decoded(self, value: bytes) -> Any:
        try:
            return ormsgpack.unpackb(value) if self._encoding == "msgpack" else orjson.loads(value)
        except ValueError:
            return None

    def _encoded(self, fields: dict[str, Any]) -> bytes:
        return ormsgpack.packb(fields) if self._encoding == "msgpack" else orjson.dumps(fields)


async def _history(jetstream: JetStreamContext, key: str) -> list[bytes]:
    """The values of a key, oldest first, asked for one by one.

    nats-py's own way is a watcher, which may take a slow beginning for the end.
    """
    values: list[bytes] = []
    sequence = 1
    while True:
        try:
            message = await jetstream.get_msg(
                f"KV_{BUCKET}", seq=sequence, subject=f"$KV.{BUCKET}.{key}", next=True
            )
        except nats.js.errors.NotFoundError:
            return values
        if not (message.headers or {}).get(KV_OP):
            values.append(message.data or b"")
        sequence = (message.seq or 0) + 1


def _key(document: Document) -> str:
    return table_key(document.table.namespace, document.table.name)


class _File:
    """How far the log was read, in the data folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._written: Place | None = None

    def read(self) -> Place | None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            fields = orjson.loads((self._folder / self._name).read_bytes())
            return Place(str(fields["segment"]), int(fields["offset"]))
        return None

    def write(self, place: Place) -> None:
        if place != self._written:
            content = orjson.dumps({"segment": place.segment, "offset": place.offset})
            LocalStore(self._folder, create=True).write_atomic(self._name, content)
            self._written = place


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
    if not found:
        return
    try:
        follow(
            [publisher.publish for publisher in found],
            lambda: any(publisher.news() for publisher in found),
            stop,
        )
    finally:
        for publisher in found:
            publisher.close()


def follow(
    publish: Sequence[Callable[[], object]], changed: Callable[[], bool], stop: threading.Event
) -> None:
    """Publish at the start, on a change and every minute; after a failure, soon again."""
    events = structlog.get_logger()
    due, failures = 0.0, 0
    while not stop.is_set():
        now = time.monotonic()
        try:
            news = failures == 0 and changed()
        except (TailraceError, OSError):
            # The minute's look is left, and says what is wrong.
            news = False
        if news or now >= due:
            try:
                for each in publish:
                    each()
                due, failures = time.monotonic() + _ALL_S, 0
            except TailraceError as error:
                delay_s = _RETRY_S[min(failures, len(_RETRY_S) - 1)]
                due, failures = time.monotonic() + delay_s, failures + 1
                events.warning(
                    "schemas.waiting", code=error.code, reason=str(error), again_in_s=delay_s
                )
        stop.wait(_LOOK_S)
