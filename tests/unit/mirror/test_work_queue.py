"""Two steps of work in parallel."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest

from tailrace.mirror.work_queue import WorkQueue, short_switch_interval


def test_worker_gets_all_items_in_order() -> None:
    done: list[int] = []

    async def work(item: int) -> None:
        await asyncio.sleep(0)
        done.append(item)

    async def run() -> None:
        async with WorkQueue(work) as queue:
            for number in range(10):
                await queue.put(number)
            await queue.join()

    asyncio.run(run())
    assert done == list(range(10))


@pytest.mark.parametrize("call", ["put", "join"])
def test_error_of_the_worker_is_raised_by_the_next_call(call: str) -> None:
    async def work(_item: int) -> None:
        raise ValueError("no space")

    async def run() -> None:
        async with WorkQueue(work) as queue:
            await queue.put(1)
            if call == "join":
                await queue.join()
            for number in range(10):
                await queue.put(number)

    with pytest.raises(ValueError, match="no space"):
        asyncio.run(run())


def test_leaving_the_block_discards_queued_items() -> None:
    started = asyncio.Event()

    async def work(_item: int) -> None:
        started.set()
        await asyncio.Event().wait()

    async def run() -> None:
        async with WorkQueue(work) as queue:
            await queue.put(1)
            await queue.put(2)
            await started.wait()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_switch_interval_is_restored() -> None:
    before = sys.getswitchinterval()
    with short_switch_interval():
        assert sys.getswitchinterval() < 0.001
    assert sys.getswitchinterval() == before


def test_the_last_of_several_mirrors_restores_the_switch_interval() -> None:
    before = sys.getswitchinterval()
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(short_switch_interval())
    second.enter_context(short_switch_interval())
    first.close()
    assert sys.getswitchinterval() < 0.001
    second.close()
    assert sys.getswitchinterval() == before
