"""Fixtures for pipelines: a Spark session and a NATS server a session, deliveries on request."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

import tailrace
from tailrace import config
from tailrace.testing import EmbeddedNats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.observe.figures import PipelineFigures
    from tailrace.pipeline.progress import Progress
    from tests.fix_capture import Captured


@dataclass(frozen=True, slots=True)
class Received:
    """A message as a consumer finds it."""

    subject: str
    id: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.payload)
        return found

    @property
    def msgpack(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.msgpack.decode(self.payload)
        return found


def received(url: str, stream: str, *, after: int = 0) -> list[Received]:
    """Everything a stream holds, in its order, but for so many messages at its beginning."""

    async def read() -> list[Received]:
        client = await nats.connect(url)
        try:
            js = client.jetstream()
            state = (await js.stream_info(stream)).state
            total = state.messages - after
            assert total >= 0, f"{stream} held {after} messages, and now only {state.messages}"
            if not total:
                return []
            settings = ConsumerConfig(
                ack_policy=AckPolicy.NONE,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=state.first_seq + after,
                mem_storage=True,
            )
            pull = await js.pull_subscribe("", stream=stream, config=settings)
            found: list[Received] = []
            while len(found) < total:
                for message in await pull.fetch(min(total - len(found), 5000), timeout=10):
                    headers = message.headers or {}
                    name = headers.get("Nats-Msg-Id", "")
                    found.append(Received(message.subject, name, message.data, dict(headers)))
            return found
        finally:
            await client.close()

    return asyncio.run(read())


class Delivery:
    """A pipeline of a captured database, run in the test's own Spark session."""

    def __init__(
        self, spark: SparkSession, captured: Captured, url: str, folder: Path, **pipeline: Any
    ) -> None:
        self._spark = spark
        self.captured = captured
        self.url = url
        self.stream = f"S{captured.database.name}"
        self.prefix = captured.database.name
        sink = pipeline.pop("kafka", None) or {
            "type": "nats",
            "url": url,
            "stream": {"name": self.stream, "subjects": [f"{self.prefix}.>"]},
            "subject": f"{self.prefix}.{{table}}.{{operation}}",
            **pipeline.pop("sink", {}),
        }
        self.config = config.Config.model_validate(
            {
                "log": {"path": captured.folder},
                "data": folder / "data",
                "pipelines": {"test": {"encoding": "json", **pipeline, "sink": sink}},
            }
        )

    @contextmanager
    def running(self) -> Iterator[Progress]:
        """The pipeline at work, until the block ends."""
        from tailrace.pipeline.running import Runner  # noqa: PLC0415 - Spark, only where needed

        runner = Runner(self._spark, self.config, "test")
        runner.start()
        try:
            yield runner.progress
        finally:
            runner.stop()
            runner.join(30)

    def run(self, timeout_s: float = 90) -> PipelineFigures:
        """Deliver everything the log holds, or end in whatever state it comes to."""
        deadline = time.monotonic() + timeout_s
        with self.running() as progress:
            while progress.figures.state in ("starting", "running", "retrying"):
                if progress.figures.position == str(self.captured.log.end().position):
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(str(progress.current()))
                time.sleep(0.1)
        return progress.figures

    def received(self) -> list[Received]:
        return received(self.url, self.stream)


@pytest.fixture(scope="session")
def nats_server() -> Iterator[EmbeddedNats]:
    """A NATS server, shared: streams are named after a test's database."""
    with EmbeddedNats() as server:
        yield server


@pytest.fixture
def server() -> Iterator[EmbeddedNats]:
    """A NATS server of the test's own."""
    with EmbeddedNats() as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The product's own session, shared."""
    from tailrace.pipeline import session  # noqa: PLC0415 - Spark, only where needed

    made = session.build(config.Spark(master="local[4]", conf=session.STREAMING))
    tailrace.register(made)
    yield made
    made.stop()


@pytest.fixture
def deliver(
    spark: SparkSession, nats_server: EmbeddedNats, tmp_path: Path
) -> Callable[..., Delivery]:
    """`deliver(captured, **pipeline)` → a `Delivery`."""

    def make(captured: Captured, **pipeline: Any) -> Delivery:
        return Delivery(spark, captured, nats_server.url, tmp_path, **pipeline)

    return make
