"""What all calls of a Creek client share: the connection, names, and schemas once read."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors
import orjson

from tailrace.client.connection import LOG, PATIENCE_S, failures
from tailrace.client.creek.schemas import Known, SchemaMessage
from tailrace.client.payload import decoded
from tailrace.client.snapshot import refusal
from tailrace.encode.creek.schema import stream, subject, unpacked
from tailrace.errors import MalformedError, SinkError, SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nats.aio.msg import Msg

    from tailrace.client.access import Access
    from tailrace.client.connection import Connection
    from tailrace.client.creek.avro import Event
    from tailrace.client.names import Table

_PAUSE_S = 0.5
_FRESH_S = 60.0
"""How long a schema counts without another look: its text may change under its fingerprint."""
_ERROR, _CODE = "Nats-Service-Error", "Nats-Service-Error-Code"
_START = "Start the producer, or name its namespace: tailrace creek"


class UnknownSchemaError(SinkRefusedError):
    """No producer has a schema with this fingerprint."""


@dataclass(slots=True, kw_only=True)
class Session:
    """Settings, and what is known so far."""

    shared: Access
    """The connection, and the iterations that are under way."""
    namespace: str
    patience_s: float
    _known: Known = field(default_factory=Known)
    _looked: dict[str, float] = field(default_factory=dict)
    """When the last schema of a table was looked for."""

    @property
    def connection(self) -> Connection:
        """To NATS."""
        return self.shared.connection

    def stream(self, kind: str) -> str:
        """The stream of one kind of message."""
        return stream(self.namespace, kind)

    def subject(self, database: str, kind: str, table: Table) -> str:
        """Where messages of a table are."""
        return subject(self.namespace, database, kind, table.schema, table.name)

    def access(self, database: str, table: Table) -> Access:
        """To the changes of one table."""
        return replace(self.shared, subjects=self.subject(database, "wal", table))

    async def subjects(self, kind: str, matching: str) -> dict[str, int]:
        """The subjects that a stream holds messages of, and how many."""
        found: dict[str, int] = {}
        name = self.stream(kind)
        while True:
            body = {"subjects_filter": matching, "offset": len(found)}
            with failures(f"look at stream {name}"):
                answer = await self.connection.client.request(
                    f"$JS.API.STREAM.INFO.{name}", orjson.dumps(body), timeout=PATIENCE_S
                )
            info = document(answer.data, "an answer of JetStream")
            if (error := info.get("error")) is not None:
                raise SinkRefusedError(f"JetStream says: {error.get('description', error)}")
            some = info["state"].get("subjects") or {}
            found |= some
            if not some or len(found) >= info.get("total", len(found)):
                return found

    async def asked(self, name: str, body: bytes) -> Msg:
        """What a producer answers to a request."""
        with failures(f"ask on {self.namespace}.{name}"):
            try:
                return await self.connection.client.request(
                    f"{self.namespace}.{name}", body, timeout=PATIENCE_S
                )
            except nats.errors.NoRespondersError as error:
                raise SinkUnreachableError(
                    f"nobody answers on {self.namespace}.{name}", hint=_START
                ) from error

    async def schema(self, fingerprint: str, where: str = "") -> SchemaMessage:
        """The schema with a fingerprint, from whoever has it."""
        found = self._known.message(fingerprint, where)
        if found is None:
            try:
                reply = await self.asked("_schema", fingerprint.encode())
            except SinkUnreachableError:
                # As Creek's guide has it; its client asks the other.
                reply = await self.asked("_schemas", fingerprint.encode())
            found = _schema(reply, fingerprint)
            self._known.add(found, where)
        return found

    async def last_schema(self, database: str, table: Table) -> SchemaMessage | None:
        """The schema of a table that was published last."""
        where = self.subject(database, "schema", table)
        with failures("look for a schema"):
            try:
                found = await self.connection.jetstream.get_last_msg(self.stream("schema"), where)
            except nats.js.errors.NotFoundError:
                return None
        message = SchemaMessage.of(content(found.data or b""))
        self._known.add(message, where)
        self._looked[where] = time.monotonic()
        return message

    async def event(self, fingerprint: str, database: str, table: Table) -> Event:
        """The schema that a change of a table was written with.

        A change is never left out: as long as nobody knows its schema it is waited for. A producer
        may be starting again, or its schema be on its way.
        """
        where = self.subject(database, "schema", table)
        deadline, told = time.monotonic() + self.patience_s, False
        while True:
            known = self._known.event(fingerprint, where)
            if known is not None and time.monotonic() - self._looked.get(where, 0.0) < _FRESH_S:
                return known
            try:
                # Most often the table's last one, which needs no producer.
                await self.last_schema(database, table)
                if self._known.event(fingerprint, where) is None:
                    await self.schema(fingerprint, where)
                self._looked[where] = time.monotonic()
            except SinkError as error:
                if known is not None:
                    self._looked[where] = time.monotonic()
                    return known
                if time.monotonic() > deadline:
                    raise
                if not told:
                    LOG.warning("waiting for schema %s of %s: %s", fingerprint, table, error)
                    told = True
                await asyncio.sleep(_PAUSE_S)


def _schema(reply: Msg, fingerprint: str) -> SchemaMessage:
    if (reply.headers or {}).get(_CODE) == "404":
        raise UnknownSchemaError(
            f"no producer has a schema with the fingerprint {fingerprint}",
            hint="Producers keep their schemas in the source's table _creek.avro_schemas: check "
            "that the one that wrote the message runs.",
        )
    refused(reply)
    message = SchemaMessage.of(reply.data)
    if message.fingerprint != fingerprint:
        raise MalformedError(f"asked for schema {fingerprint}, got {message.fingerprint}")
    return message


def refused(reply: Msg) -> None:
    """Raise what a reply says is wrong, if it does."""
    said = (reply.headers or {}).get(_ERROR)
    if said is None:
        return
    answer: Mapping[str, Any] = {}
    if reply.data.startswith(b"{"):
        answer = decoded(reply.data, "json")
    raise refusal({"error": said} | dict(answer))


def content(payload: bytes) -> bytes:
    """What is in a packet."""
    found = unpacked(payload)
    if found is None:
        raise MalformedError(
            "a message is not one packet of Creek's",
            hint="The client reads messages that fit one packet; producers of Tailrace write no "
            "others.",
        )
    return found


def document(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = orjson.loads(data)
    except ValueError as error:
        raise MalformedError(f"{what} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise MalformedError(f"{what} is not an object")
    return found
