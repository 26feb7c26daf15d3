"""A whole system in one process: capture, a pipeline to JetStream, and snapshots on request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tailrace import client
from tailrace.change import Op
from tailrace.schemas.publisher import Publisher
from tests.integration.snapshot.serving import Serving
from tests.jetstream import requested, stored
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured

T = TypeVar("T")


class System(Serving):
    """Capture, a pipeline and its services. Call `start` after the tables exist."""

    def __init__(
        self, spark: SparkSession, captured: Captured, server: EmbeddedNats, folder: Path
    ) -> None:
        super().__init__(captured.database, server, folder / "data", spark=spark, captured=captured)
        self.pipeline = {
            "encoding": "msgpack",
            "sink": {"type": "nats", "url": server.url},
            "snapshots": {"chunk_rows": 50, "stretch_bytes": 8192, "compression": "none"},
        }

    def start(self) -> Self:
        self.publish_schemas()
        self.start_capture()
        self.start_pipeline()
        self.start_service()
        wait_for(lambda: self.stored() is not None, "the pipeline creates its stream")
        return self

    def publish_schemas(self) -> None:
        Publisher(self.config, self.config.pipelines[self.name]).publish()

    def start_service(self) -> None:
        """Start it, and wait until it answers."""
        super().start_service()
        requested(self.server.url, [("snapshot.request.nowhere", b"")], timeout_s=LONG_S)

    def forget_snapshots(self, table: str) -> None:
        """End the sessions that hold snapshots of a table open, and with them a lock on it."""
        self.database.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_locks"
            f" WHERE relation = '{table}'::regclass"
            " AND mode = 'AccessShareLock' AND pid <> pg_backend_pid()"
        )

    def stored(self, stream: str = "CDC") -> int | None:
        """The number of messages in a stream; None if the stream is missing."""
        return stored(self.server.url, stream)

    def consume(self, consumer: Callable[[client.Client], Awaitable[T]]) -> T:
        """Run a coroutine with a connected client."""

        async def run() -> T:
            async with (
                asyncio.timeout(LONG_S),
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
