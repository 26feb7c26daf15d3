"""Creek's snapshots: a database, a NATS server, and the service between them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import nats

from tailrace import config
from tailrace.encode.creek import schema as creek
from tailrace.observe.figure import document
from tests.creek import read, reader_schema
from tests.fix_pipeline import received
from tests.integration.snapshot.serving import Serving
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.testing import EmbeddedNats
    from tests.fix_pipeline import Received
    from tests.fix_postgres import Database

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

    def __init__(
        self, spark: SparkSession, database: Database, server: EmbeddedNats, folder: Path
    ) -> None:
        super().__init__(spark)
        self.database = database
        self.server = server
        self.folder = folder
        self.snapshots: dict[str, Any] = {
            "request": REQUEST,
            "stretch_bytes": 8192,
            "stream": {"name": STREAM, "subjects": ["CREEK.*.snap.>"]},
        }
        self.settings: dict[str, Any] = {
            "source": {"dsn": database.dsn, "publication": "pub"},
            "log": {"path": str(folder / "log")},
            "data": str(folder),
            "pipelines": {
                "p": {
                    "shape": "creek",
                    "sink": {
                        "type": "nats",
                        "url": server.url,
                        "stream": {"name": "CREEK_wal", "subjects": ["CREEK.*.wal.>"]},
                        "subject": "CREEK.{database}.wal.{schema}.{table}",
                    },
                    "snapshots": self.snapshots,
                }
            },
        }

    def start(self) -> None:
        self.serve(config.Config.model_validate(self.settings), "p")

    def ask(self, table: str = "items", *, timeout_s: float = 1, **names: str) -> Answer:
        """A request as Creek's clients send it, with as much patience."""
        given = {"database": self.database.name, "namespace": "public", "table": table} | names
        return self.say(msgspec.json.encode(given), timeout_s=timeout_s)

    def say(self, body: bytes, *, timeout_s: float = 1) -> Answer:
        """The answer to a request; None of the time is spent on waiting for the service."""
        return self.say_all([body], timeout_s=timeout_s)[0]

    def say_all(self, bodies: list[bytes], *, timeout_s: float = 1) -> list[Answer]:
        """The answers to requests that go out together."""

        async def request() -> list[Answer]:
            client = await nats.connect(self.server.url)
            try:
                deadline = time.monotonic() + 20
                while True:
                    try:
                        asked = [
                            client.request(REQUEST, each, timeout=timeout_s) for each in bodies
                        ]
                        answers = await asyncio.gather(*asked)
                    except nats.errors.NoRespondersError:
                        assert time.monotonic() < deadline
                        await asyncio.sleep(0.1)
                    else:
                        return [
                            Answer(answer.data.decode(), dict(answer.headers or {}))
                            for answer in answers
                        ]
            finally:
                await client.close()

        return asyncio.run(request())

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
        found = received(self.server.url, STREAM)
        return Topic([message for message in found if message.subject == name])

    def limit(self, messages: int) -> None:
        """Let the stream take so many messages."""
        asyncio.run(self._alter(messages))

    async def _alter(self, messages: int) -> None:
        client = await nats.connect(self.server.url)
        try:
            jetstream = client.jetstream()
            settings = (await jetstream.stream_info(STREAM)).config
            settings.max_msgs = messages
            await jetstream.update_stream(settings)
        finally:
            await client.close()

    def purge(self) -> None:
        """Have the stream lose everything."""

        async def purge() -> None:
            client = await nats.connect(self.server.url)
            try:
                await client.jetstream().purge_stream(STREAM)
            finally:
                await client.close()

        asyncio.run(purge())
