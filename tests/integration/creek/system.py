"""`tailrace creek` as a process, with its own database and NATS server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import httpx
import msgspec
import nats
from typing_extensions import override

from tailrace.encode.creek import schema as creek
from tailrace.testing.process import free_port
from tests import http
from tests.command import Service
from tests.creek import event
from tests.jetstream import received
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from nats.aio.msg import Msg

    from tests.fix_postgres import Database

NAMESPACE = "CREEK"


class Producer(Service):
    """A running producer, and what its consumers find."""

    def __init__(self, folder: Path, database: Database, url: str, *tables: str) -> None:
        self.database = database
        self.nats = url
        self.http = f"http://127.0.0.1:{free_port()}"
        environment = {
            "PG_URI": database.dsn,
            "PG_PUBLICATION_NAME": "creek_publication",
            "PG_PUBLICATION_SLOT": database.name,
            "PG_TABLES": " ".join(tables),
            "NATS_URI": url,
            "PROMETHEUS_PORT": self.http.rpartition(":")[2],
        }
        super().__init__("creek", "--data", "data", folder=folder, env=environment)

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

    def request(self, subject: str, body: bytes = b"", timeout_s: float = 20.0) -> Msg:
        """The reply to a request."""

        async def ask() -> Msg:
            client = await nats.connect(self.nats)
            try:
                return await client.request(f"{NAMESPACE}.{subject}", body, timeout=timeout_s)
            finally:
                await client.close()

        return asyncio.run(ask())

    def schema(self, fingerprint: str) -> str:
        """A schema, by request."""
        reply = msgspec.json.decode(self.request("_schemas", fingerprint.encode()).data)
        return str(reply["schema"])

    def subject(self, kind: str, table: str) -> str:
        """Where messages of a table in schema public are."""
        return creek.subject(NAMESPACE, self.database.name, kind, "public", table)

    def events(self, table: str, *, raw: bool = False) -> list[dict[str, Any]]:
        """All events of a table, each read with the schema it names."""
        found = received(self.nats, f"{NAMESPACE}_wal")
        mine = [each.payload for each in found if each.subject == self.subject("wal", table)]
        names = {creek.Schema(text="", fingerprint=each[8:16]).name for each in mine}
        schemas = {name: self.schema(name) for name in names}
        return [event(payload, schemas, raw=raw) for payload in mine]

    def caught_up(self, table: str, count: int) -> list[dict[str, Any]]:
        """The events of a table once there are so many; more would be too many."""
        wait_for(lambda: len(self.events(table)) >= count, f"{count} events of {table}")
        return self.events(table)
