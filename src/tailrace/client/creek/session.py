"""The state that all calls of a Creek client share, and requests to producers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import nats.errors
import nats.js.errors
import orjson

from tailrace.backoff import Backoff
from tailrace.client.connection import LOG, REQUEST_TIMEOUT_S, translate_errors
from tailrace.client.creek.packets import continues, unpack
from tailrace.client.creek.schemas import SchemaCache, SchemaMessage
from tailrace.client.payload import decode
from tailrace.client.snapshots.messages import refusal
from tailrace.encode.creek.names import Kind, LayoutName, StreamLayout
from tailrace.errors import MalformedError, SinkError, SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nats.aio.msg import Msg

    from tailrace.client.access import Access
    from tailrace.client.connection import Connection
    from tailrace.client.creek.avro import ChangeSchema
    from tailrace.client.names import Table

_FRESH_S = 60.0
"""How long a cached schema is used without a check: its text may change under its fingerprint."""
_ERROR, _CODE = "Nats-Service-Error", "Nats-Service-Error-Code"
_START = "Start the producer, or name its namespace: tailrace creek"


class UnknownSchemaError(SinkRefusedError):
    """No producer has a schema with this fingerprint."""


class NoProducerError(SinkUnreachableError):
    """No producer listens for a request."""


class NoReplyError(SinkUnreachableError):
    """A producer listens and does not reply: it has no answer, or is too slow."""


@dataclass(slots=True, kw_only=True)
class Session:
    """Settings of a client and its cache of schemas."""

    shared: Access
    """The connection, and the open iterations."""
    namespace: str
    layout: LayoutName = "namespace"
    patience_s: float
    clock: Callable[[], float] = time.monotonic
    _cache: SchemaCache = field(default_factory=SchemaCache)
    _checked_at: dict[str, float] = field(default_factory=dict)
    """When the newest schema of a subject was read last."""

    @property
    def connection(self) -> Connection:
        """The connection to NATS."""
        return self.shared.connection

    def names(self, database: str) -> StreamLayout:
        """The names of streams, subjects and requests of a database."""
        return StreamLayout.of(self.namespace, self.layout, database)

    def subject(self, database: str, kind: Kind, table: Table) -> str:
        """The subject of a table's messages of one kind."""
        return self.names(database).subject(kind, database, table.schema, table.name)

    def snapshot_stream(self, topic: str) -> str:
        """The stream of a snapshot. With layout database, its topic begins with the stream."""
        return (
            topic.partition(".")[0] if self.layout == "database" else self.names("").stream("snap")
        )

    def access(self, database: str, table: Table) -> Access:
        """Access to the changes of one table."""
        stream = self.names(database).stream("wal")
        return replace(self.shared, stream=stream, subjects=self.subject(database, "wal", table))

    async def subjects(self, stream: str, matching: str) -> dict[str, int]:
        """The subjects in a stream, with their numbers of messages."""
        counts: dict[str, int] = {}
        while True:
            body = {"subjects_filter": matching, "offset": len(counts)}
            info = await self._read_api(f"STREAM.INFO.{stream}", body, f"read stream {stream}")
            page = info["state"].get("subjects") or {}
            counts |= page
            if not page or len(counts) >= info.get("total", len(counts)):
                return counts

    async def streams(self) -> list[str]:
        """The names of all streams."""
        names: list[str] = []
        while True:
            info = await self._read_api("STREAM.NAMES", {"offset": len(names)}, "list the streams")
            page = info.get("streams") or []
            names += page
            if not page or len(names) >= info.get("total", len(names)):
                return names

    async def _read_api(self, name: str, body: dict[str, Any], action: str) -> dict[str, Any]:
        with translate_errors(action):
            answer = await self.connection.client.request(
                f"$JS.API.{name}", orjson.dumps(body), timeout=REQUEST_TIMEOUT_S
            )
        info = parse_object(answer.data, "an answer of JetStream")
        if (error := info.get("error")) is not None:
            raise SinkRefusedError(
                f"JetStream refuses to {action}: {error.get('description', error)}"
            )
        return info

    async def databases(self) -> list[str]:
        """The databases with published schemas."""
        names = self.names("")
        if self.layout == "database":
            prefix = f"{names.stream('schema')}_"
            streams = await self.streams()
            tokens = {name.removeprefix(prefix) for name in streams if name.startswith(prefix)}
        else:
            subjects = await self.subjects(names.stream("schema"), names.stream_subjects("schema"))
            tokens = {subject.split(".")[1] for subject in subjects}
        return sorted(map(unquote, tokens))

    async def request(self, subject: str, body: bytes) -> Msg:
        """The answer of a producer to a request."""
        with translate_errors(f"send a request on {subject}"):
            try:
                return await self.connection.client.request(
                    subject, body, timeout=REQUEST_TIMEOUT_S
                )
            except nats.errors.NoRespondersError as error:
                raise NoProducerError(f"no producer answers on {subject}", hint=_START) from error
            except nats.errors.TimeoutError as error:
                raise NoReplyError(
                    f"no producer has replied on {subject} within {REQUEST_TIMEOUT_S:g} s",
                    hint=_START,
                ) from error

    async def schema(self, fingerprint: str, database: str, where: str = "") -> SchemaMessage:
        """The schema with a fingerprint, from the cache or from any producer."""
        message = self._cache.message(fingerprint, where)
        if message is None:
            try:
                reply = await self._request_schema(fingerprint, database)
            except NoReplyError as error:
                # A producer that does not know a schema is silent.
                raise _unknown(fingerprint) from error
            message = _schema_message(reply, fingerprint)
            self._cache.add(message, where)
        return message

    async def _request_schema(self, fingerprint: str, database: str) -> Msg:
        *others, last = self.names(database).schema_requests
        for subject in others:
            with contextlib.suppress(NoProducerError):
                return await self.request(subject, fingerprint.encode())
        return await self.request(last, fingerprint.encode())

    async def last_schema(self, database: str, table: Table) -> SchemaMessage | None:
        """The newest published schema of a table."""
        where = self.subject(database, "schema", table)
        with translate_errors("read a schema"):
            try:
                stream = self.names(database).stream("schema")
                stored = await self.connection.jetstream.get_last_msg(stream, where)
            except nats.js.errors.NotFoundError:
                return None
        if continues(stored.data or b""):
            # A schema in several packets: the producer is asked for it.
            return None
        message = SchemaMessage.of(unpack(stored.data or b""))
        self._cache.add(message, where)
        self._checked_at[where] = self.clock()
        return message

    async def change_schema(self, fingerprint: str, database: str, table: Table) -> ChangeSchema:
        """The schema that a change of a table was written with.

        A change is never skipped: while its schema is unknown, the client waits for it. A producer
        may be restarting, or may publish the schema after the change.
        """
        where = self.subject(database, "schema", table)
        deadline = self.clock() + self.patience_s
        backoff = Backoff(first_s=0.5, max_s=2.0, clock=self.clock)
        while True:
            cached = self._cache.change_schema(fingerprint, where)
            if cached is not None and self.clock() - self._checked_at.get(where, 0.0) < _FRESH_S:
                return cached
            try:
                await self._look_up(fingerprint, database, table, where)
            except SinkError as error:
                if cached is not None:
                    self._checked_at[where] = self.clock()
                    return cached
                if self.clock() > deadline:
                    raise
                if not backoff.failures:
                    LOG.warning(
                        "schema.waiting fingerprint=%s table=%s reason=%s",
                        fingerprint, table, error,
                    )  # fmt: skip
                await asyncio.sleep(backoff.next_s())

    async def _look_up(self, fingerprint: str, database: str, table: Table, where: str) -> None:
        """Get a schema into the cache, or check the cached one."""
        # The table's newest schema first: it is the right one most often, and needs no producer.
        await self.last_schema(database, table)
        if self._cache.change_schema(fingerprint, where) is None:
            await self.schema(fingerprint, database, where)
        self._checked_at[where] = self.clock()


def _schema_message(reply: Msg, fingerprint: str) -> SchemaMessage:
    if (reply.headers or {}).get(_CODE) == "404":
        # From a producer of an earlier release.
        raise _unknown(fingerprint)
    raise_if_refused(reply)
    message = SchemaMessage.of(reply.data)
    if message.fingerprint != fingerprint:
        raise MalformedError(f"requested schema {fingerprint}, got {message.fingerprint}")
    return message


def _unknown(fingerprint: str) -> UnknownSchemaError:
    return UnknownSchemaError(
        f"no producer has a schema with the fingerprint {fingerprint}",
        hint="Producers store their schemas in the table _creek.avro_schemas of the source: "
        "check that the producer of the message is running.",
    )


def raise_if_refused(reply: Msg) -> None:
    """Raise the error that a reply reports, if any."""
    text = (reply.headers or {}).get(_ERROR)
    if text is None:
        return
    answer: Mapping[str, Any] = {}
    if reply.data.startswith(b"{"):
        answer = decode(reply.data, "json")
    raise refusal({"error": text} | dict(answer))


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        content = orjson.loads(data)
    except ValueError as error:
        raise MalformedError(f"{what} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise MalformedError(f"{what} must be an object")
    return content
