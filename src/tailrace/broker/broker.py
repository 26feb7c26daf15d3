"""The broker: everything that its connections share, and its background tasks.

    catalog   the topics
    access    users and their ACLs
    memory    the budgets that all requests share
    writer    producing
    reader    consuming, with `tails` in memory
    groups    consumer groups; `presence` shows their members in a table
    signals   wakes fetches that wait for records

One connection to PostgreSQL listens for notifications: records and topics that applications write
with SQL. It also holds the advisory lock that makes this the only broker of its database, because
the state of consumer groups is in the memory of one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from importlib import resources
from typing import TYPE_CHECKING

import psycopg
import structlog

from tailrace.backoff import Backoff
from tailrace.broker.auth.access import Access
from tailrace.broker.groups import Coordinator
from tailrace.broker.limits import Limits, MemoryBudget
from tailrace.broker.tables import expiry, history, retention
from tailrace.broker.tables.catalog import Topic, TopicCatalog
from tailrace.broker.tables.pool import Pool, connect
from tailrace.broker.tables.presence import Presence
from tailrace.broker.tables.reader import Reader, Tails
from tailrace.broker.tables.schema import BROKER_LOCK, INSTALLED, missing
from tailrace.broker.tables.writer import Writer
from tailrace.broker.tally import Tally
from tailrace.errors import AlreadyRunningError, TailraceError, UnexpectedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tailrace.broker.settings import BrokerSettings
    from tailrace.broker.tables.pending import PartitionKey, PendingBatch
    from tailrace.broker.tables.pool import Connection

_CHANNEL = "tailrace_kafka"
_MAX_RETRY_S = 2.0
_TAKEOVER_S = 5.0
_EXPIRE_INTERVAL_S = 0.2
_PRESENCE_INTERVAL_S, _PRESENCE_RETRY_S = 0.5, 5.0
_RETENTION_PER_EXPIRY = 10
"""Producers and offsets are searched as a whole, and so less often than records."""


class Signals:
    """Wakes fetches that wait for records of a partition."""

    def __init__(self) -> None:
        self._waiting: dict[PartitionKey, set[asyncio.Event]] = defaultdict(set)

    def wake(self, key: PartitionKey) -> None:
        """A partition has new records."""
        for event in self._waiting.get(key, ()):
            event.set()

    def wake_all(self) -> None:
        """Any partition may have new records."""
        for key in list(self._waiting):
            self.wake(key)

    @contextlib.contextmanager
    def watch(self, keys: Iterable[PartitionKey]) -> Iterator[asyncio.Event]:
        """An event that is set when one of these partitions has new records."""
        event, watched = asyncio.Event(), list(keys)
        for key in watched:
            self._waiting[key].add(event)
        try:
            yield event
        finally:
            for key in watched:
                self._waiting[key].discard(event)
                if not self._waiting[key]:
                    del self._waiting[key]


class Broker:
    """Everything except the sockets. `limits` overrides those of the settings."""

    def __init__(self, dsn: str, settings: BrokerSettings, limits: Limits | None = None) -> None:
        self._dsn = dsn
        self.settings = settings
        self.limits = limits or settings.limits
        self.catalog = TopicCatalog()
        self.access = Access()
        large, small = self.limits.response_bytes, self.limits.small_response_bytes
        self.memory = MemoryBudget(self.limits.memory_bytes - large - small)
        self.response_memory = MemoryBudget(large)
        self.small_response_memory = MemoryBudget(small)
        self.tally = Tally()
        self.signals = Signals()
        self.groups = Coordinator(self.limits, on_size=self.memory.keep)
        self.pool = Pool(dsn, settings.connections)
        self.presence = Presence(self.pool)
        self.tails = Tails(settings.tail_bytes)
        self.reader = Reader(self.pool, self.tails)
        self.writer = Writer(dsn, self._on_written, max_blocked_bytes=self.limits.kept_bytes)
        self.cluster = ""
        self.connected = False
        """Whether PostgreSQL is reachable and this broker holds its lock."""
        self.on_access: Callable[[], None] = lambda: None
        """Called when users or ACLs have changed."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the lock is lost: clients must be disconnected."""
        self._tasks: list[asyncio.Task[None]] = []
        self._events = structlog.get_logger()

    @property
    def memory_used(self) -> int:
        """Bytes of requests and responses in progress."""
        return sum(budget.used for budget in self._budgets)

    @property
    def memory_waiting(self) -> int:
        """Number of requests that wait for memory."""
        return sum(budget.waiting for budget in self._budgets)

    @property
    def _budgets(self) -> tuple[MemoryBudget, ...]:
        return self.memory, self.response_memory, self.small_response_memory

    async def start(self) -> None:
        """Take the lock, read the topics, and start the background tasks."""
        listener = await self._first_listen()
        tasks = {
            "writer": self.writer.run(),
            "listener": self._handle_notifications(listener),
            "expiry of members": self._expire_waiting(),
            "retention": self._apply_retention(),
            "presence": self._show_groups(),
        }
        self._tasks = [asyncio.create_task(task, name=name) for name, task in tasks.items()]
        # They begin: a task that is cancelled before would not close its connection.
        await asyncio.sleep(0)

    async def watch(self) -> None:
        """Wait for the end of a background task. None should end, so it is always an error."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        task = done.pop()
        error = None if task.cancelled() else task.exception()
        raise UnexpectedError(f"the broker's {task.get_name()} has ended: {error!r}") from error

    async def stop(self) -> None:
        """Stop the background tasks and close all connections to PostgreSQL."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.writer.close()
        await self.pool.close()
        self.groups.clear()

    def _on_written(self, pending: PendingBatch, offset: int) -> None:
        count = len(pending.batch.records)
        self.tally.batches += 1
        self.tally.produced_records += count
        self.tally.produced_bytes += pending.batch.size
        if pending.data:
            self.tails.add(pending.key, offset, count, pending.data)
        self.signals.wake(pending.key)

    async def _first_listen(self) -> Connection:
        """PostgreSQL takes a moment to notice that the broker before this one was killed."""
        backoff = Backoff(first_s=0.05, max_s=0.2)
        clock = asyncio.get_running_loop().time
        deadline = clock() + _TAKEOVER_S
        while True:
            try:
                return await self._listen()
            except AlreadyRunningError:
                if clock() > deadline:
                    raise
            await asyncio.sleep(backoff.next_s())

    async def _listen(self) -> Connection:
        """A connection that holds the lock and listens; everything is read anew on it."""
        listener = await connect(self._dsn, name="broker listener")
        try:
            await _take_lock(listener)
            await listener.execute(f"LISTEN {_CHANNEL}")
            self.cluster = await history.identify(listener)
            await self.catalog.refresh(listener)
            await self._refresh_access(listener)
            await self.presence.clear(listener)
            self.connected = True
        except BaseException:
            await listener.close()
            raise
        return listener

    async def _handle_notifications(self, listener: Connection) -> None:
        """Handle notifications, and listen again whenever the connection is lost.

        The lock is lost with the connection. Another broker may take it, and would coordinate the
        same groups: so this one stops serving until it holds the lock again, and forgets all
        members. They join again, here or there.
        """
        while True:
            try:
                async for notice in listener.notifies():
                    await self._handle(notice.payload)
            except (psycopg.Error, TailraceError) as error:
                self._events.warning("broker.listener_lost", reason=str(error).strip())
            finally:
                self.connected = False
                await listener.close()
            self.on_lost()
            self.groups.clear()
            self.presence.forget()
            await self.writer.pause()
            await self.pool.close()
            # The tails may have batches that a crash of PostgreSQL has removed from the tables,
            # and batches that were written while the listener connected.
            self.tails.clear()
            listener = await self._listen_again()
            self.writer.resume()
            self.tails.clear()
            self.signals.wake_all()

    async def _listen_again(self) -> Connection:
        backoff = Backoff(max_s=_MAX_RETRY_S)
        while True:
            try:
                return await self._listen()
            except (psycopg.Error, TailraceError) as error:
                retry_in_s = backoff.next_s()
                self._events.warning(
                    "broker.waiting_for_postgres",
                    reason=str(error).strip(),
                    retry_in_s=round(retry_in_s, 1),
                )
                await asyncio.sleep(retry_in_s)

    async def _handle(self, payload: str) -> None:
        """A notification: `TOPIC_ID:PARTITION` for new records, `access`, or `topics`."""
        topic, _, partition = payload.partition(":")
        if topic.isdecimal() and partition.isdecimal():
            self.signals.wake((int(topic), int(partition)))
        elif topic == "access":
            async with self.pool.connection() as connection:
                await self._refresh_access(connection)
            self._events.info("broker.access_changed", users=len(self.access.users))
        else:
            await self.refresh()

    async def refresh(self) -> None:
        """Read the topics again."""
        async with self.pool.connection() as connection:
            await self.catalog.refresh(connection)

    async def _refresh_access(self, connection: Connection) -> None:
        await self.access.refresh(connection)
        self.on_access()

    async def know(self, names: Iterable[str]) -> None:
        """Read the tables once if one of these topics is unknown: it may have been created."""
        if any(name not in self.catalog.topics for name in names):
            await self.refresh()

    async def topic(self, name: str) -> Topic | None:
        """A topic, or None. Reads the tables before it reports that a topic does not exist."""
        if name not in self.catalog.topics:
            await self.refresh()
        return self.catalog.topics.get(name)

    async def _expire_waiting(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_INTERVAL_S)
            self.groups.expire()
            self.writer.expire()

    async def _show_groups(self) -> None:
        while True:
            await asyncio.sleep(_PRESENCE_INTERVAL_S)
            if not self.connected:
                # The rows may be those of another broker.
                continue
            try:
                await self.presence.update(self.groups.all())
            except TailraceError as error:
                self._events.warning("broker.groups_not_shown", reason=str(error))
                await asyncio.sleep(_PRESENCE_RETRY_S)

    async def _apply_retention(self) -> None:
        for number in itertools.count():
            await asyncio.sleep(self.settings.retention_check_s)
            if number % _RETENTION_PER_EXPIRY == 0:
                await self._expire_rows()
            for topic in list(self.catalog.topics.values()):
                try:
                    await retention.apply(self.pool, topic)
                except TailraceError as error:
                    self._events.warning(
                        "broker.retention_failed", topic=topic.name, reason=str(error)
                    )

    async def _expire_rows(self) -> None:
        """Delete the state of producers and groups that are gone."""
        settings = self.settings
        active = [group.id for group in self.groups.all() if group.members]
        try:
            producers = await expiry.expire_producers(self.pool, settings.producer_id_expiration_s)
            offsets = await expiry.expire_offsets(self.pool, settings.offsets_retention_s, active)
        except TailraceError as error:
            self._events.warning("broker.expiry_failed", reason=str(error))
            return
        if producers or offsets:
            self._events.info("broker.expired", producers=producers, offsets=offsets)


async def _take_lock(connection: Connection) -> None:
    """Take the lock of the only broker. An error if it is taken, or there are no tables."""
    cursor = await connection.execute("SELECT pg_try_advisory_lock(%s)", (BROKER_LOCK,))
    row = await cursor.fetchone()
    if row is None or not row[0]:
        raise AlreadyRunningError(
            "another broker serves this database",
            hint="Stop it first; pg_locks shows its connection.",
        )
    row = await (await connection.execute(INSTALLED)).fetchone()
    if row is None or row[0] is None:
        raise missing()


async def install(dsn: str) -> None:
    """Create the tables and functions that are missing."""
    script = resources.files("tailrace.broker.tables").joinpath("schema.sql").read_text()
    connection = await connect(dsn, name="broker init")
    async with connection, connection.transaction():
        await connection.execute(script, prepare=False)
