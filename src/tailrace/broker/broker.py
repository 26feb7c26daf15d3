"""The broker: what its connections share, and what goes on beside them.

    catalog   the topics
    access    users, and what they may do
    room      the memory that requests share
    writer    producing
    reader    consuming, with `tails` in memory
    groups    who consumes what
    signals   wakes who waits for records

One connection to PostgreSQL listens. It hears of records and topics that others have made with SQL,
and it holds the lock that makes this the only broker of its database: groups live in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING

import psycopg
import structlog

from tailrace.broker.auth.access import Access
from tailrace.broker.groups import Coordinator
from tailrace.broker.limits import Limits, Room
from tailrace.broker.tables import retention
from tailrace.broker.tables.catalog import Topic, TopicCatalog
from tailrace.broker.tables.pool import Pool, connect
from tailrace.broker.tables.reader import Reader, Tails
from tailrace.broker.tables.writer import Writer
from tailrace.broker.tally import Tally
from tailrace.errors import AlreadyRunningError, ConfigError, TailraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tailrace.broker.tables.pool import Connection
    from tailrace.broker.tables.writer import Place, Waiting

_CHANNEL = "tailrace_kafka"
_LOCK = 0x7461696C_6B61666B
_RETRY_S = 1.0
_TICK_S = 0.2
_INSTALLED = "SELECT to_regclass('kafka.secrets')"
"""The youngest of the tables."""
_HINT = "Make the tables: tailrace broker --init"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a broker behaves."""

    dsn: str
    auto_create: bool = True
    partitions: int = 1
    """Of a topic that is made because somebody asked for it."""
    most_message_bytes: int = 8 << 20
    """Of a record batch, packed and unpacked."""
    tail_bytes: int = 64 << 20
    connections: int = 4
    """To PostgreSQL, beside the two that write and listen."""
    retention_s: float = 60.0
    """How often old records are looked for."""
    limits: Limits = field(default_factory=Limits)


class Signals:
    """Wakes who waits for a partition."""

    def __init__(self) -> None:
        self._waiting: dict[Place, set[asyncio.Event]] = defaultdict(set)

    def wake(self, place: Place) -> None:
        """There is something new."""
        for event in self._waiting.get(place, ()):
            event.set()

    def wake_all(self) -> None:
        """There may be something new anywhere."""
        for place in list(self._waiting):
            self.wake(place)

    @contextlib.contextmanager
    def watch(self, places: Iterable[Place]) -> Iterator[asyncio.Event]:
        """An event that is set whenever there is something new in one of these."""
        event, watched = asyncio.Event(), list(places)
        for place in watched:
            self._waiting[place].add(event)
        try:
            yield event
        finally:
            for place in watched:
                self._waiting[place].discard(event)
                if not self._waiting[place]:
                    del self._waiting[place]


class Broker:
    """Everything but the sockets."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog = TopicCatalog()
        self.access = Access()
        self.room = Room(settings.limits.memory_bytes)
        self.tally = Tally()
        self.signals = Signals()
        self.groups = Coordinator()
        self.pool = Pool(settings.dsn, settings.connections)
        self.tails = Tails(settings.tail_bytes)
        self.reader = Reader(self.pool, self.tails)
        self.writer = Writer(settings.dsn, self._written)
        self.cluster = ""
        self.connected = False
        """Whether PostgreSQL answers, and holds the lock for us."""
        self.on_access: Callable[[], None] = lambda: None
        """Called when users or rules have changed."""
        self._tasks: list[asyncio.Task[None]] = []
        self._events = structlog.get_logger()

    async def start(self) -> None:
        """Take the lock, learn the topics, and begin."""
        listener = await self._listen()
        self._tasks = [
            asyncio.create_task(self.writer.run()),
            asyncio.create_task(self._await_acks(listener)),
            asyncio.create_task(self._tick()),
            asyncio.create_task(self._clean()),
        ]

    async def stop(self) -> None:
        """End in order."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.writer.close()
        await self.pool.close()

    def _written(self, each: Waiting, offset: int) -> None:
        self.tally.batches += 1
        self.tally.produced_records += len(each.batch.records)
        self.tally.produced_bytes += each.batch.size
        if each.data:
            self.tails.add(each.place, offset, len(each.batch.records), each.data)
        self.signals.wake(each.place)

    async def _listen(self) -> Connection:
        listener = await connect(self.settings.dsn, name="broker listener")
        try:
            row = await (
                await listener.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,))
            ).fetchone()
            if row is None or not row[0]:
                raise AlreadyRunningError(
                    "another broker serves this database",
                    hint="Stop it first; pg_locks names its connection.",
                )
            there = await (await listener.execute(_INSTALLED)).fetchone()
            if there is None or there[0] is None:
                raise ConfigError("the database has no tables for topics", hint=_HINT)
            await listener.execute(f"LISTEN {_CHANNEL}")
            found = await listener.execute("SELECT system_identifier FROM pg_control_system()")
            (self.cluster,) = map(str, await found.fetchone() or ("",))
            await self.catalog.refresh(listener)
            await self._learn_access(listener)
            self.connected = True
        except BaseException:
            await listener.close()
            raise
        return listener

    async def _await_acks(self, listener: Connection) -> None:
        """Notifications, for ever. Whoever missed some looks again at everything."""
        while True:
            try:
                async for notice in listener.notifies():
                    await self._heed(notice.payload)
            except (psycopg.Error, TailraceError) as error:
                self._events.warning("broker.listener-lost", reason=str(error).strip())
            finally:
                self.connected = False
                await listener.close()
            await self.pool.close()
            # What was kept may be more than what a crash has left.
            self.tails.clear()
            listener = await self._listen_again()
            self.tails.clear()
            self.signals.wake_all()

    async def _listen_again(self) -> Connection:
        while True:
            try:
                return await self._listen()
            except (psycopg.Error, TailraceError) as error:
                self._events.warning("broker.waiting-for-postgres", reason=str(error).strip())
                await asyncio.sleep(_RETRY_S)

    async def _heed(self, payload: str) -> None:
        topic, _, partition = payload.partition(":")
        if topic.isdecimal() and partition.isdecimal():
            self.signals.wake((int(topic), int(partition)))
        elif topic == "access":
            async with self.pool.connection() as connection:
                await self._learn_access(connection)
        else:
            await self.refresh()

    async def refresh(self) -> None:
        """Learn the topics again."""
        async with self.pool.connection() as connection:
            await self.catalog.refresh(connection)

    async def _learn_access(self, connection: Connection) -> None:
        await self.access.refresh(connection)
        self.on_access()

    async def topic(self, name: str) -> Topic | None:
        """A topic, if there is one; tables are asked before nobody knows it."""
        if name not in self.catalog.topics:
            await self.refresh()
        return self.catalog.topics.get(name)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.groups.expire()

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(self.settings.retention_s)
            for topic in list(self.catalog.topics.values()):
                try:
                    await retention.apply(self.pool, topic)
                except TailraceError as error:
                    self._events.warning(
                        "broker.retention-failed", topic=topic.name, reason=str(error)
                    )


async def install(dsn: str) -> None:
    """Make the tables and functions; those that are there stay as they are."""
    script = resources.files("tailrace.broker.tables").joinpath("schema.sql").read_text()
    connection = await connect(dsn, name="broker init")
    async with connection, connection.transaction():
        await connection.execute(script, prepare=False)
