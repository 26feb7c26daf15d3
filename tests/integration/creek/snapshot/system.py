"""Creek's snapshots: a database, a NATS server, and the service between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.encode.creek import schema as creek
from tailrace.observe.figure import document
from tests.creek import read, reader_schema
from tests.integration.snapshot.serving import Serving
from tests.jetstream import connected, requested
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from nats.aio.client import Client
    from pyspark.sql import SparkSession

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database
    from tests.jetstream import Received

STREAM = "CREEK_snap"
REQUEST = "CREEK._snapshot"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a client."""

    text: str
    headers: dict[str, str]

    @property
    def status(self) -> str:
        """Of an error."""
        assert self.headers["Nats-Service-Error"]
        return self.headers["Nats-Service-Error-Code"]

    @property
    def error(self) -> dict[str, str]:
        """What an error says."""
        found: dict[str, str] = msgspec.json.decode(self.text)
        return found


@dataclass(frozen=True, slots=True)
class Topic:
    """The messages of one snapshot, as a client of Creek takes them."""

    messages: list[Received]

    @property
    def contents(self) -> list[bytes]:
        """What is in the packets."""
        found = [creek.unpacked(message.payload) for message in self.messages]
        assert None not in found
        return [each for each in found if each is not None]

    @property
    def header(self) -> dict[str, Any]:
        """The first one."""
        found: dict[str, Any] = msgspec.json.decode(self.contents[0])
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All between the first and the last one, which is EOF."""
        _, *rows, end = self.contents
        assert end == b"EOF"
        assert len({message.id for message in self.messages}) == len(self.messages)
        return self.decoded(rows)

    def decoded(self, contents: list[bytes]) -> list[dict[str, Any]]:
        """Rows by the header's schema."""
        schema = reader_schema(self.header["schema"])
        return [read(schema, content) for content in contents]


class System(Serving):
    """Serves Creek's requests."""

    name = "p"

    def __init__(
        self, spark: SparkSession, database: Database, server: EmbeddedNats, data: Path
    ) -> None:
        super().__init__(database, server, data, spark=spark)
        self.pipeline = {
            "shape": "creek",
            "sink": {
                "type": "nats",
                "url": server.url,
                "stream": {"name": "CREEK_wal", "subjects": ["CREEK.*.wal.>"]},
                "subject": "CREEK.{database}.wal.{schema}.{table}",
            },
            "snapshots": {
                "request": REQUEST,
                "stretch_bytes": 8192,
                "stream": {"name": STREAM, "subjects": ["CREEK.*.snap.>"]},
            },
        }

    def ask(self, table: str = "items", *, timeout_s: float = LONG_S, **names: str) -> Answer:
        """A request as Creek's clients send it, with more patience."""
        given = {"database": self.database.name, "namespace": "public", "table": table} | names
        return self.say(msgspec.json.encode(given), timeout_s=timeout_s)

    def say(self, body: bytes, *, timeout_s: float = LONG_S) -> Answer:
        """The answer to a request; None of the time is spent on waiting for the service."""
        return self.say_all([body], timeout_s=timeout_s)[0]

    def say_all(self, bodies: list[bytes], *, timeout_s: float = LONG_S) -> list[Answer]:
        """The answers to requests that go out together."""
        requests = [(REQUEST, body) for body in bodies]
        return [
            Answer(reply.data.decode(), dict(reply.headers or {}))
            for reply in requested(self.server.url, requests, timeout_s=timeout_s)
        ]

    def over(self, topic: str) -> dict[str, object]:
        """The snapshot on a topic, once it is over."""
        name = topic.rpartition(".")[2]
        found: list[dict[str, object]] = []

        def ended() -> bool:
            assert self.service is not None
            found[:] = [document(each) for each in self.service.progress() if each.id == name]
            return found[0]["state"] in {"complete", "failed"}

        wait_for(ended, f"snapshot {name} is over")
        return found[0]

    def cut(self, topic: str, *, after: int) -> None:
        """Wait for the service to die after the configured wave."""
        wait_for(lambda: self.waves >= after, f"wave {after} of {topic}")
        self.stop_service()

    def topic(self, name: str) -> Topic:
        """What is on a topic."""
        return Topic([message for message in self.received(STREAM) if message.subject == name])

    def limit(self, messages: int) -> None:
        """Let the stream take so many messages."""

        async def alter(client: Client) -> None:
            jetstream = client.jetstream(timeout=60)
            settings = (await jetstream.stream_info(STREAM)).config
            settings.max_msgs = messages
            await jetstream.update_stream(settings)

        connected(self.server.url, alter)
