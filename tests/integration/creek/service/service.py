"""The schema service of a producer without Spark: a captured database and the threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec
import nats.errors

from tailrace.creek import service
from tailrace.encode.creek import schema as creek
from tailrace.encode.creek.names import StreamLayout
from tailrace.log.reader import Earliest
from tailrace.wire import pgoutput
from tests.jetstream import connected
from tests.system import System
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from tailrace.schema import TypeName
    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured

NAMESPACE = "CREEK"
PIPELINE: dict[str, Any] = {
    "tables": ["*.*", "!_creek.*"],
    "shape": "creek",
    "namespace": NAMESPACE,
    "snapshots": {
        "request": f"{NAMESPACE}._snapshot",
        "stream": {"name": f"{NAMESPACE}_snap", "subjects": [f"{NAMESPACE}.*.snap.>"]},
    },
}


class Service(System):
    """What `tailrace serve` runs for a creek pipeline, and the other side of it."""

    name = "creek"

    def __init__(self, captured: Captured, server: EmbeddedNats, **source: str) -> None:
        data = captured.folder.parent / f"data-{captured.database.name}"
        super().__init__(captured.database, server, data, captured=captured)
        self.source = captured.config.source.model_dump() | source
        sink = {
            "type": "nats",
            "url": server.url,
            "stream": {"name": f"{NAMESPACE}_wal", "subjects": [f"{NAMESPACE}.*.wal.>"]},
            "subject": f"{NAMESPACE}.{{database}}.wal.{{schema}}.{{table}}",
        }
        self.pipeline = PIPELINE | {"sink": sink}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, *, answering: bool = True) -> None:
        """Start the threads; return after requests are answered."""
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, args=(self._stop,), name=name)
            for name, work in service.parts(self.config)
        ]
        for thread in self._threads:
            thread.start()
        if answering:
            wait_for(lambda: self.ask(b"?") is not None, "requests to be answered")

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LONG_S)
            assert not thread.is_alive()
        self._threads = []
        super().stop()

    def ask(
        self, body: bytes | str, subject: str = "_schema", *, timeout_s: float = LONG_S
    ) -> Msg | None:
        """The first reply; None if there is no listener."""
        payload = body.encode() if isinstance(body, str) else body

        async def request(client: Client) -> Msg | None:
            try:
                return await client.request(f"{NAMESPACE}.{subject}", payload, timeout=timeout_s)
            except nats.errors.NoRespondersError:
                return None

        return connected(self.server.url, request)

    def is_silent(self, fingerprint: str) -> bool:
        """Whether there is no reply within a second, the timeout of Creek's clients."""
        return self._ask_once(fingerprint) is None

    def _ask_once(self, fingerprint: str, subject: str = "_schema") -> Msg | None:
        try:
            return self.ask(fingerprint, subject, timeout_s=1.0)
        except nats.errors.TimeoutError:
            return None

    def schema(self, fingerprint: str, subject: str = "_schema") -> dict[str, Any]:
        """The document of a fingerprint. A busy machine may need more than the first second."""
        reply = wait_for(lambda: self._ask_once(fingerprint, subject), "a reply")
        content: dict[str, Any] = msgspec.json.decode(reply.data)
        assert reply.headers is None
        return content

    def published(self, table: str, schema: str = "public") -> list[dict[str, Any]]:
        """The messages on a table's schema subject."""
        names = StreamLayout(namespace=NAMESPACE)
        subject = names.subject("schema", self.database.name, schema, table)
        return [
            msgspec.json.decode(creek.unpacked(message.payload) or b"")
            for message in self.received(f"{NAMESPACE}_schema")
            if message.subject == subject
        ]

    def eventually_published(
        self, table: str, good: Callable[[Sequence[dict[str, Any]]], object] = bool
    ) -> list[dict[str, Any]]:
        """The messages of a table once they are as they should be."""
        wait_for(lambda: self._exists() and good(self.published(table)), f"schemas of {table}")
        return self.published(table)

    def streams(self) -> set[str]:
        """What streams there are."""

        async def read(client: Client) -> set[str]:
            found = await client.jetstream(timeout=60).streams_info()
            return {each.config.name or "" for each in found}

        return connected(self.server.url, read)

    def _exists(self) -> bool:
        return f"{NAMESPACE}_schema" in self.streams()

    def stored(self) -> dict[str, str]:
        """The table of schemas: sources by fingerprint."""
        sql = "SELECT fingerprint, source FROM _creek.avro_schemas"
        return {str(name): str(source) for name, source in self.database.query(sql)}


def fingerprints(captured: Captured, table: str, *, partial: bool = False) -> list[str]:
    """Those of a table's changes in the log, each once, oldest first."""
    found = []
    types: dict[int, TypeName] = {}
    for entry in captured.log.read(captured.log.resolve(Earliest())):
        for message in entry.schema_messages():
            stated = pgoutput.parse(message)
            if isinstance(stated, pgoutput.TypeName):
                types[stated.oid] = stated
            elif isinstance(stated, pgoutput.Relation) and stated.name == table:
                found.append(creek.event(stated, types, partial=partial).name)
    return list(dict.fromkeys(found))
