"""The budget of memory: in order, never more than there is but for one, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.limits import Room, Share

if TYPE_CHECKING:
    from collections.abc import Coroutine


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def test_those_who_ask_first_get_first() -> None:
    async def work() -> None:
        room, order = Room(100), []
        first = await room.take(90)

        async def ask(name: str, size: int) -> None:
            share = await room.take(size)
            order.append(name)
            share.release()

        # The small one would fit, but does not pass the large one.
        tasks = [asyncio.create_task(ask("large", 80)), asyncio.create_task(ask("small", 5))]
        await asyncio.sleep(0)
        assert (room.waiting, order) == (2, [])
        first.release()
        await asyncio.gather(*tasks)
        assert order == ["large", "small"]
        assert (room.used, room.waiting) == (0, 0)

    run(work())


def test_what_is_larger_than_the_room_goes_alone() -> None:
    async def work() -> None:
        room = Room(100)
        small = await room.take(10)
        large = asyncio.create_task(room.take(1000))
        await asyncio.sleep(0)
        assert not large.done()
        small.release()
        share = await large
        later = asyncio.create_task(room.take(1))
        await asyncio.sleep(0)
        assert not later.done()
        share.release()
        (await later).release()
        assert room.used == 0

    run(work())


def test_a_share_that_changes() -> None:
    async def work() -> None:
        room = Room(100)
        one, other = await room.take(50), await room.take(50)
        # It holds nothing while it waits, so two of them cannot wait for each other.
        tasks = [asyncio.create_task(one.become(60)), asyncio.create_task(other.become(60))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        one.fit(20)
        await asyncio.gather(*tasks)
        assert room.used == 80
        other.grow(100)
        assert (room.used, other.size) == (180, 160)
        one.release()
        one.release()
        other.release()
        assert room.used == 0

    run(work())


@given(st.integers(0, 2**32), st.integers(1, 300))
def test_whoever_is_cancelled_leaves_nothing_behind(seed: int, size: int) -> None:
    chance = random.Random(seed)

    async def work() -> None:
        room, most = Room(size), 0

        async def client() -> None:
            nonlocal most
            share = Share(room)
            try:
                for _ in range(5):
                    await share.become(chance.randrange(1, 100))
                    most = max(most, room.used)
                    await asyncio.sleep(0)
                    share.fit(chance.randrange(share.size + 1))
                    await asyncio.sleep(0)
            finally:
                share.release()

        tasks = [asyncio.create_task(client()) for _ in range(20)]
        while not all(task.done() for task in tasks):
            if chance.random() < 0.2:
                chance.choice(tasks).cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (room.used, room.waiting) == (0, 0)
        assert most <= max(size, 99)

    run(work())
