"""The background tasks of the broker: none may end unnoticed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tailrace.broker.broker import Broker
from tailrace.broker.serving import _until
from tailrace.broker.settings import BrokerSettings
from tailrace.errors import UnexpectedError

if TYPE_CHECKING:
    from collections.abc import Coroutine


async def fails() -> None:
    raise ValueError("a bug")


async def ends() -> None:
    await asyncio.sleep(0)


async def watched(task: Coroutine[None, None, None], stop: asyncio.Event) -> None:
    """Serve with one background task that runs on, and with this one."""
    broker = Broker("", BrokerSettings())
    running = asyncio.create_task(asyncio.sleep(1000))
    broker._tasks = [running, asyncio.create_task(task, name="retention")]
    try:
        await asyncio.wait_for(_until(stop, broker), 30)
    finally:
        running.cancel()


def test_a_task_that_fails_ends_the_broker() -> None:
    with pytest.raises(UnexpectedError, match=r"the broker's retention has ended.*a bug"):
        asyncio.run(watched(fails(), asyncio.Event()))


def test_a_task_that_returns_ends_the_broker() -> None:
    with pytest.raises(UnexpectedError, match="the broker's retention has ended"):
        asyncio.run(watched(ends(), asyncio.Event()))


def test_a_signal_ends_it_in_order() -> None:
    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, stop.set)
        await watched(asyncio.sleep(1000), stop)

    asyncio.run(run())
