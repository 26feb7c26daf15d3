"""`tailrace creek` as a process, with its own database and NATS server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import httpx
import msgspec
import nats
import nats.errors
from typing_extensions import override

from tailrace.encode.creek import schema as creek
from tailrace.encode.creek.names import StreamLayout
from tailrace.testing.process import free_port
from tests import http
from tests.command import Service
from tests.creek import event
from tests.jetstream import received
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from nats.aio.msg import Msg

    from tailrace.encode.creek.names import Kind, LayoutName
    from tests.fix_postgres import Database

NAMESPACE = "CREEK"


class Producer(Service):
    """A running producer, and what its consumers find."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        url: str,
        *tables: str,
        layout: LayoutName = "namespace",
        encoding: str = "avro",
    ) -> None:
        self.database = database
        self.names = StreamLayout.of(NAMESPACE, layout, database.name)
        self.nats = url
        self.http = f"http://127.0.0.1:{free_port()}"
        environment = {
            "PG_URI": database.dsn,
            "PG_PUBLICATION_NAME": "creek_publication",
            "PG_PUBLICATION_SLOT": database.name,
            "PG_TABLES": " ".join(tables),
            "NATS_URI": url,
            "NATS_LAYOUT": layout,
            "PROMETHEUS_PORT": self.http.rpartition(":")[2],
        }
        options = ("--data", "data", "--encoding", encoding)
        super().__init__("creek", *options, folder=folder, env=environment)

    @override
    def start(self) -> Self:
        """Start it, and wait until it delivers."""
        super().start()
        self.wait_until(self._runs, "the producer runs")
        return self

    def _runs(self) -> bool:
        try:
            found = http.get(f"{self.http}/status").json()
        except httpx.TransportError:
            return False
        return bool(found["pipelines"].get("creek", {}).get("state") == "running")

    def request(self, subject: str, body: bytes = b"", timeout_s: float = LONG_S) -> Msg:
        """The reply to a request."""

        async def ask() -> Msg:
            client = await nats.connect(self.nats)
            try:
                return await client.request(subject, body, timeout=timeout_s)
            finally:
                await client.close()

        return asyncio.run(ask())

    def schema(self, fingerprint: str) -> str:
        """A schema, by request."""
        subject = self.names.schema_requests[-1]

        def reply() -> bytes:
            # A service that could not read its log in time stays silent; Creek's clients ask again.
            try:
                return self.request(subject, fingerprint.encode(), timeout_s=3.0).data
            except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                return b""

        found = wait_for(reply, f"schema {fingerprint}")
        return str(msgspec.json.decode(found)["schema"])

    def subject(self, kind: Kind, table: str) -> str:
        """Where messages of a table in schema public are."""
        return self.names.subject(kind, self.database.name, "public", table)

    def events(self, table: str, *, raw: bool = False) -> list[dict[str, Any]]:
        """All events of a table, each read with the schema it names."""
        found = received(self.nats, self.names.stream("wal"))
        mine = [each.payload for each in found if each.subject == self.subject("wal", table)]
        names = {creek.Schema(text="", fingerprint=each[8:16]).name for each in mine}
        schemas = {name: self.schema(name) for name in names}
        return [event(payload, schemas, raw=raw) for payload in mine]

    def caught_up(self, table: str, count: int) -> list[dict[str, Any]]:
        """The events of a table once there are so many; more would be too many."""
        wait_for(lambda: len(self.events(table)) >= count, f"{count} events of {table}")
        return self.events(table)
