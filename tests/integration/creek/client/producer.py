"""A fake producer: Creek's streams, messages encoded by fastavro, and answers to requests."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import io
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import fastavro
import nats
import nats.errors
import orjson

from tailrace.encode.creek import schema as creek
from tailrace.encode.creek.names import KINDS, StreamLayout
from tailrace.schema import Column, Relation, ReplicaIdentity
from tests.creek import reader_schema
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

    from tailrace.encode.creek.names import Kind, LayoutName
    from tailrace.testing import EmbeddedNats

DATABASE = "shop"
AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
INT, TEXT = 23, 25


def relation(
    name: str = "users",
    *columns: Column,
    schema: str = "public",
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
) -> Relation:
    """A table; without columns, one with an id and a name."""
    default = (Column(name="id", type_oid=INT, key=True), Column(name="name", type_oid=TEXT))
    return Relation(
        oid=1, namespace=schema, name=name, replica_identity=identity, columns=columns or default
    )


USERS = relation()


def encode(schema: creek.Schema, value: dict[str, Any]) -> bytes:
    """Encode a value in Avro, by the schema without its logical types."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, reader_schema(schema.text, raw=True), value)
    return stream.getvalue()


def micros(at: datetime) -> int:
    """A time in microseconds since 1970."""
    return int(at.timestamp() * 1_000_000)


def event(
    table: Relation,
    op: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    lsn: int = 1,
    xid: int = 1,
    unchanged: Iterable[str] = (),
) -> bytes:
    """A change as a packet; values are those of Avro."""
    schema = creek.event(table, {}, partial=bool(unchanged))
    message = {
        "fingerprint": schema.name,
        "source": {
            "name": "test", "tx_at": micros(AT), "db": DATABASE, "schema": table.namespace,
            "table": table.name, "tx_id": xid, "last_lsn": "0/0", "lsn": f"0/{lsn:X}",
        },
        "op": op, "sent_at": micros(AT), "before": before, "after": after,
    }  # fmt: skip
    if unchanged:
        message["unchanged"] = list(unchanged)
    return creek.packet(creek.MARK + schema.fingerprint + encode(schema, message))


def divided(packet: bytes, size: int) -> list[bytes]:
    """A packet as Creek sends it if no message may have more than so many bytes of content."""
    content = creek.unpacked(packet)
    assert content is not None
    parts = [content[at * size : (at + 1) * size] for at in range(1 + len(content) // size)]
    heads = [packet[:6], *(number.to_bytes(2, "big") for number in range(1, len(parts)))]
    return [head + part for head, part in zip(heads, parts, strict=True)]


class Producer:
    """A producer in its own thread. Its calls return after JetStream has stored the messages."""

    def __init__(
        self,
        server: EmbeddedNats,
        *,
        namespace: str = creek.NAMESPACE,
        layout: LayoutName = "namespace",
    ) -> None:
        self.url = server.url
        self.names = StreamLayout.of(namespace, layout, DATABASE)
        self.schemas: dict[str, bytes] = {}
        """Answers to schema requests, by fingerprint."""
        self.topics: list[str] = []
        """Answers to snapshot requests, in order; the last one is repeated."""
        self.refusal: tuple[str, dict[str, str]] | None = None
        """If set: the code and the body of the answer to all snapshot requests."""
        self.requests: list[dict[str, Any]] = []
        self._number = 0
        self._loop = asyncio.new_event_loop()
        self._connection: Client | None = None
        self._thread = threading.Thread(target=self._run, name="producer")

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._connection is not None
        # Cancelled: by nats-py itself, if the client is about to connect again.
        with contextlib.suppress(concurrent.futures.CancelledError):
            self._call(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _call(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result(LONG_S)

    async def _start(self) -> None:
        self._connection = connection = await nats.connect(self.url, max_reconnect_attempts=-1)
        for kind in KINDS:
            await self._stream(kind)
        for subject in self.names.schema_requests:
            await connection.subscribe(subject, cb=self._on_schema)
        await connection.subscribe(self.names.snapshot_request, cb=self._on_snapshot)
        await connection.flush()

    async def _stream(self, kind: Kind) -> None:
        assert self._connection is not None
        name = self.names.stream(kind)
        config = {
            "name": name, "subjects": [self.names.stream_subjects(kind)], "retention": "limits",
            "storage": "file", "allow_atomic": True,
        }  # fmt: skip
        # nats-py has no setting for atomic batches.
        answer = await self._connection.request(
            f"$JS.API.STREAM.CREATE.{name}", orjson.dumps(config), timeout=LONG_S
        )
        assert "error" not in orjson.loads(answer.data), answer.data

    async def _jetstream(self) -> JetStreamContext:
        """JetStream, once it answers. What is sent just before a reconnection is lost."""
        assert self._connection is not None
        while True:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                await self._connection.jetstream(timeout=2).account_info()
                return self._connection.jetstream(timeout=LONG_S)
            await asyncio.sleep(0.05)

    async def _on_schema(self, message: Msg) -> None:
        schema = self.schemas.get(message.data.decode())
        if schema is None:
            # As producers of earlier releases do; later ones stay silent.
            await _refuse(message, "404", {"error": "not here", "code": "x", "hint": ""})
        else:
            await message.respond(schema)

    async def _on_snapshot(self, message: Msg) -> None:
        self.requests.append(orjson.loads(message.data))
        if self.refusal is not None:
            await _refuse(message, *self.refusal)
        else:
            topic = self.topics.pop(0) if len(self.topics) > 1 else self.topics[0]
            await message.respond(topic.encode())

    def serve_schema(self, table: Relation, *, partial: bool = False) -> str:
        """Answer requests for the schema of a table's changes; its fingerprint."""
        schema = creek.event(table, {}, partial=partial)
        self.schemas[schema.name] = orjson.dumps(
            {
                "fingerprint": schema.name,
                "schema": schema.text,
                "source": table.qualified_name,
                "created_at": AT.isoformat(),
            }
        )
        return schema.name

    def publish_schema(self, table: Relation) -> None:
        """Publish the schema of a table's changes."""
        self.publish(
            self.subject("schema", table), creek.packet(self.schemas[self.serve_schema(table)])
        )

    def subject(self, kind: Kind, table: Relation) -> str:
        """The subject of a table's messages."""
        return self.names.subject(kind, DATABASE, table.namespace, table.name)

    def publish(
        self, subject: str, *payloads: bytes, headers: dict[str, str] | None = None
    ) -> None:
        """Publish messages, each acknowledged by the stream."""

        async def publish() -> None:
            jetstream = await self._jetstream()
            for payload in payloads:
                await jetstream.publish(subject, payload, headers=headers)

        self._call(publish())

    def purge(self, kind: Kind) -> None:
        """Delete a stream and create it again."""

        async def purge() -> None:
            jetstream = await self._jetstream()
            await jetstream.delete_stream(self.names.stream(kind))
            await self._stream(kind)

        self._call(purge())

    def wal(self, table: Relation, *payloads: bytes) -> None:
        """Publish changes of a table, and serve their schemas."""
        self.serve_schema(table)
        self.serve_schema(table, partial=True)
        self.publish(self.subject("wal", table), *payloads)

    def wal_batch(self, *messages: tuple[Relation, bytes]) -> None:
        """Publish changes in one atomic batch."""

        async def publish() -> None:
            await self._jetstream()
            assert self._connection is not None
            for at, (table, payload) in enumerate(messages, 1):
                headers = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(at)}
                if at == len(messages):
                    headers["Nats-Batch-Commit"] = "1"
                answer = await self._connection.request(
                    self.subject("wal", table), payload, headers=headers, timeout=LONG_S
                )
                assert b"error" not in answer.data, answer.data

        for table, _ in messages:
            self.serve_schema(table)
        self._call(publish())

    def topic(self, table: Relation) -> str:
        """A topic for a snapshot of a table, as the next answer to snapshot requests."""
        self._number += 1
        name = f"{self.subject('snap', table)}.{AT:%Y%m%d%H%M%S_%f}_{self._number:04x}"
        self.topics.append(name)
        return name

    def header(self, table: Relation, **more: Any) -> bytes:
        """The first message of a snapshot."""
        schema = creek.row(table, {})
        header = {
            "fingerprint": schema.name, "schema": schema.text, "tx_id": 7, "lsn": "0/10",
            "at": AT.isoformat(), "approx_rows": 2,
        }  # fmt: skip
        return creek.packet(orjson.dumps(header | more))

    def snapshot(self, table: Relation, rows: Iterable[dict[str, Any]], **header: Any) -> str:
        """Publish a complete snapshot; its topic."""
        topic = self.topic(table)
        body = (creek.packet(encode(creek.row(table, {}), row)) for row in rows)
        self.publish(topic, self.header(table, **header), *body, creek.packet(creek.END))
        return topic


async def _refuse(message: Msg, code: str, answer: dict[str, str]) -> None:
    assert message._client is not None
    await message._client.publish(
        message.reply,
        orjson.dumps(answer),
        headers={"Nats-Service-Error": answer["error"], "Nats-Service-Error-Code": code},
    )
