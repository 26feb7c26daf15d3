"""The clerk of a store, in a thread of the test."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import SinkUnreachableError
from tailrace.run.pull_clerk import Clerk
from tailrace.sinks.pull.database import in_folder
from tests.unit.sinks.pull.stores import RULES, Change, Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG_S = 240.0
VISIBILITY_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "sink")
    yield made
    made.close()


@pytest.fixture
def clerk(store: Store, tmp_path: Path) -> Clerk:
    return Clerk(in_folder(tmp_path / "sink"), RULES)


@contextmanager
def running(clerk: Clerk) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=clerk.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def receive(clerk: Clerk, wait_s: float = LONG_S) -> list[tuple[str, int]]:
    found = await clerk.receive(10, visibility_ms=VISIBILITY_MS, wait_s=wait_s)
    return [(each.id, each.deliveries) for each in found]


def test_a_cancelled_request_leaves_messages_to_others(store: Store, clerk: Clerk) -> None:
    """GIVEN requests that are cancelled at any moment WHEN a message comes THEN one that is not
    cancelled receives it, for the first time."""

    async def work() -> list[tuple[str, int]]:
        tasks = [asyncio.create_task(receive(clerk)) for _ in range(100)]
        await asyncio.sleep(0.05)
        store.add([Change("a")])
        for task in tasks:
            task.cancel()
            await asyncio.sleep(0)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        received = [each for each in done if isinstance(each, list) and each]
        return received[0] if received else await receive(clerk)

    with running(clerk):
        assert asyncio.run(work()) == [("1", 1)]


def test_cancelled_requests_are_forgotten(clerk: Clerk) -> None:
    async def work() -> None:
        for _ in range(30):
            requests = (receive(clerk, wait_s=0.001) for _ in range(20))
            assert await asyncio.gather(*requests) == [[]] * 20

    with running(clerk):
        asyncio.run(work())
        assert len(clerk._waiting) < 200


def test_requests_are_served_in_turn(store: Store, clerk: Clerk) -> None:
    async def work() -> list[str]:
        order = []

        async def wait(name: str) -> None:
            await clerk.receive(1, visibility_ms=VISIBILITY_MS, wait_s=LONG_S)
            order.append(name)

        tasks = []
        for name in "abc":
            tasks.append(asyncio.create_task(wait(name)))
            await asyncio.sleep(0)
        for count in range(1, 4):
            # The clerk looks at its inbox again with each request.
            store.add([Change(f"{count}")])
            await clerk.call(lambda store, _: store.next_expiry_ms())
            while len(order) < count:
                await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        return order

    with running(clerk):
        assert asyncio.run(work()) == ["a", "b", "c"]


def test_requests_fail_when_the_clerk_stops(clerk: Clerk) -> None:
    async def work() -> None:
        waiting = asyncio.create_task(receive(clerk))
        with running(clerk):
            await clerk.call(lambda store, _: store.next_expiry_ms())
        with pytest.raises(SinkUnreachableError, match="the store is closed"):
            await waiting

    asyncio.run(work())


def test_an_error_fails_its_requests_and_ends_the_clerk(clerk: Clerk) -> None:
    async def work() -> None:
        failing = clerk.call(lambda store, _: store.connection.execute("nonsense"))
        task = asyncio.create_task(failing)
        await asyncio.sleep(0)
        with pytest.raises(Exception, match="syntax error"):
            await asyncio.to_thread(clerk.run, threading.Event())
        with pytest.raises(Exception, match="syntax error"):
            await task

    asyncio.run(work())
