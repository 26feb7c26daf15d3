"""A broker in this process, with any limits, and what tests of limits share."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import TYPE_CHECKING, Any

from tailrace.broker.broker import Broker, install
from tailrace.broker.server import Server
from tailrace.broker.settings import BrokerSettings
from tests.integration.broker.raw import Raw
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from tailrace.broker.limits import Limits
    from tests.fix_postgres import Database

MB = 1 << 20


class EmbeddedBroker:
    """A broker in a thread of this process, with any limits."""

    def __init__(self, dsn: str, limits: Limits) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._do(install(dsn))
        self.broker = self._do(self._make(dsn, limits))
        self._do(self.broker.start())
        self.server = Server(self.broker)
        self.port: int = self._do(self.server.start("127.0.0.1", 0))

    @staticmethod
    async def _make(dsn: str, limits: Limits) -> Broker:
        return Broker(dsn, BrokerSettings(), limits)

    @property
    def used(self) -> int:
        """Memory of requests and responses."""
        found: int = self.broker.memory_used
        return found

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LONG_S)

    def close(self) -> None:
        self._do(self.server.stop())
        self._do(self.broker.stop())
        self._do(_finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _finish() -> None:
    """Wait for requests whose clients have gone: they release their memory at their end."""
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks, timeout=LONG_S)


def topic(database: Database, port: int, partitions: int = 1) -> str:
    """A new topic that the broker has in its catalog."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    query = 'SELECT kafka.create_topic(%s, %s, \'{"retention.ms": "-1"}\')'
    database.query(query, name, partitions)
    with Raw(port) as raw:
        assert not raw.ask(3, 9, {"topics": [{"name": name}]}).topics[0].error_code
    return name


def alive(port: int) -> bool:
    with Raw(port) as raw:
        return bool(raw.ask(3, 9, {"topics": []}).brokers)


def refused(served: EmbeddedBroker, reason: str) -> int:
    found: int = served.broker.tally.refused[reason]
    return found
