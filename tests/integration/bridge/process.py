"""`tailrace bridge` as a process, and the consumer's side of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import nats
from psycopg.conninfo import conninfo_to_dict

from tailrace.testing.process import free_port
from tests import http
from tests.command import Service
from tests.jetstream import Received, received
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database

USER, PASSWORD = "bridge_user", "bridge-canary"
AUTHORIZATION = f"authorization {{ user: {USER}, password: {PASSWORD} }}"


def login(server: EmbeddedNats) -> str:
    return f"nats://{USER}:{PASSWORD}@127.0.0.1:{server.port}"


def reader(database: Database) -> str:
    return f"reader_{database.name}"


class Bridge(Service):
    """A `tailrace bridge` process, its endpoints, and the consumer's side of it."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        server: EmbeddedNats,
        *more: str,
        name: str = "",
        env: dict[str, str] | None = None,
    ) -> None:
        """`name` ends the names of slot, publication and output of one of several bridges."""
        self.database = database
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.consumer = login(server)
        self.slot = f"{database.name}{name}"[-63:]
        where = conninfo_to_dict(database.dsn)
        environment = {
            "PG_HOST": str(where["host"]),
            "PG_PORT": str(where["port"]),
            "PG_DB": database.name,
            "POSTGRES_BRIDGE_USER": reader(database),
            "POSTGRES_BRIDGE_PASSWORD": PASSWORD,
            "NATS_HOST": "127.0.0.1",
            "NATS_PORT": str(server.port),
            "NATS_BRIDGE_USER": USER,
            "NATS_BRIDGE_PASSWORD": PASSWORD,
        }
        super().__init__(
            *("bridge", "--slot", self.slot, "--pub", f"my_pub{name}", "--port", self.port, *more),
            folder=folder,
            env=environment | (env or {}),
            file=f"output{name}",
        )

    def get(self, path: str) -> httpx.Response | None:
        try:
            return http.get(self.url + path, timeout=LONG_S)
        except httpx.TransportError:
            return None

    def status(self) -> dict[str, Any]:
        answer = self.get("/status")
        found: dict[str, Any] = answer.json() if answer else {}
        return found

    def received(self, count: int) -> list[Received]:
        """What the stream holds, once it is so many messages."""
        wait_for(lambda: self._stored() >= count)
        return received(self.consumer, "CDC")

    def _stored(self) -> int:
        answer = self.get("/streams/info?stream=CDC")
        return answer.json()["state"]["messages"] if answer and answer.is_success else 0

    def document(self, key: str) -> bytes:
        """A value of the bucket `schemas`."""

        async def read() -> bytes:
            client = await nats.connect(self.consumer)
            try:
                bucket = await client.jetstream(timeout=60).key_value("schemas")
                return (await bucket.get(key)).value or b""
            except nats.js.errors.NotFoundError:
                return b""
            finally:
                await client.close()

        return wait_for(lambda: asyncio.run(read()), f"a schema document of {key}")

    def snapshot(self, table: str) -> dict[str, Any]:
        """The metadata of a snapshot, or what became of it."""

        async def ask() -> dict[str, Any]:
            client = await nats.connect(self.consumer)
            try:
                over = await client.subscribe(f"init.meta.{table}")
                await client.request(f"snapshot.request.{table}", b"", timeout=LONG_S)
                answer = await over.next_msg(timeout=LONG_S)
                found: dict[str, Any] = msgspec.msgpack.decode(answer.data)
                return found
            finally:
                await client.close()

        return asyncio.run(ask())
