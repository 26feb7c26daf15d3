"""A whole system in one process: capture, a pipeline to JetStream, and snapshots on request."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

import nats
import nats.errors

from tailrace import client, config
from tailrace.change import Op
from tailrace.pipeline.running import Runner
from tailrace.schemas.publisher import Publisher
from tests.integration.cases.running import Running
from tests.integration.snapshot.serving import Serving
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured

PATIENCE_S = 120.0
T = TypeVar("T")


class System(Serving):
    """Capture, a pipeline and its services. Call `start` after the tables exist."""

    def __init__(
        self, spark: SparkSession, captured: Captured, server: EmbeddedNats, folder: Path
    ) -> None:
        super().__init__(spark)
        self.captured = captured
        self.database = captured.database
        self.server = server
        self.encoding = "msgpack"
        self.compression = "none"
        self._folder = folder
        self._capture: Running | None = None
        self._runner: Runner | None = None

    @property
    def config(self) -> config.Config:
        return config.Config.model_validate(
            {
                "source": {
                    "dsn": self.database.dsn,
                    "slot": self.captured.slot,
                    "publication": self.captured.publication,
                },
                "log": {"path": self.captured.folder},
                "data": self._folder / "data",
                "pipelines": {
                    "test": {
                        "encoding": self.encoding,
                        "sink": {"type": "nats", "url": self.server.url},
                        "snapshots": {
                            "chunk_rows": 50,
                            "stretch_bytes": 8192,
                            "compression": self.compression,
                        },
                    }
                },
            }
        )

    def start(self) -> System:
        self.publish_schemas()
        self._capture = Running(self.captured)
        self._runner = Runner(self._spark, self.config, "test")
        self._runner.start()
        self.start_service()
        wait_for(lambda: self.stored() is not None, "the pipeline creates its stream")
        return self

    def publish_schemas(self) -> None:
        Publisher(self.config, self.config.pipelines["test"]).publish()

    def start_service(self) -> None:
        self.serve(self.config, "test")
        asyncio.run(self._listening())

    async def _listening(self) -> None:
        connection = await nats.connect(self.server.url)
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    await connection.request("snapshot.request.nowhere", b"", timeout=20)
                except nats.errors.NoRespondersError:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.1)
                else:
                    return
        finally:
            await connection.close()

    def forget_snapshots(self, table: str) -> None:
        """End the sessions that hold snapshots of a table open, and with them a lock on it."""
        self.database.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = '{table}'::regclass"
            " AND mode = 'AccessShareLock' AND pid <> pg_backend_pid()"
        )

    def stop(self) -> None:
        self.stop_service()
        if self._runner is not None:
            self._runner.stop()
            self._runner.join(30)
        if self._capture is not None:
            self._capture.stop()

    def stored(self, stream: str = "CDC") -> int | None:
        """The number of messages in a stream; None if the stream is missing."""

        async def ask() -> int | None:
            connection = await nats.connect(self.server.url)
            try:
                info = await connection.jetstream().stream_info(stream)
                return int(info.state.messages)
            except nats.js.errors.NotFoundError:
                return None
            finally:
                await connection.close()

        return asyncio.run(ask())

    def consume(self, consumer: Callable[[client.Client], Awaitable[T]]) -> T:
        """Run a coroutine with a connected client."""

        async def run() -> T:
            async with (
                asyncio.timeout(PATIENCE_S),
                client.connect(self.server.url) as connected,
            ):
                return await consumer(connected)

        return asyncio.run(run())


Rows = dict[int, dict[str, Any]]


def apply(rows: Rows, event: client.Change) -> None:
    """Apply an event to a copy of a table with the key `id`."""
    match event.op:
        case Op.READ:
            assert event.data["id"] not in rows
            rows[event.data["id"]] = event.data
        case Op.INSERT:
            assert event.data["id"] not in rows
            rows[event.data["id"]] = event.data
        case Op.UPDATE:
            row = rows.pop((event.old or event.data)["id"])
            unchanged = {name: row[name] for name in event.unchanged}
            rows[event.data["id"]] = event.data | unchanged
        case Op.DELETE:
            del rows[event.data["id"]]
        case Op.TRUNCATE:
            rows.clear()
        case Op.MESSAGE:
            raise AssertionError(event)


def select_rows(system: System, table: str) -> Rows:
    """The rows of the table in PostgreSQL, by id."""
    with system.database.connect() as connection:
        cursor = connection.execute(f"SELECT * FROM {table} ORDER BY id".encode())
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        return {row[names.index("id")]: dict(zip(names, row, strict=True)) for row in cursor}


async def take(events: client.Follow | client.Replica, count: int) -> list[client.Change]:
    """The next events of an iteration, which stays open."""
    return [await anext(events) for _ in range(count)]
