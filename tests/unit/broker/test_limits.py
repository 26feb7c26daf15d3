"""The memory budget: granted in order, exceeded by a single reservation only, never leaked."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.limits import MemoryBudget, Reservation

if TYPE_CHECKING:
    from collections.abc import Coroutine


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def test_memory_is_granted_in_order() -> None:
    async def work() -> None:
        budget, order = MemoryBudget(100), []
        first = await budget.reserve(90)

        async def ask(name: str, size: int) -> None:
            reservation = await budget.reserve(size)
            order.append(name)
            reservation.release()

        # The small one would fit, but does not overtake the large one.
        tasks = [asyncio.create_task(ask("large", 80)), asyncio.create_task(ask("small", 5))]
        await asyncio.sleep(0)
        assert (budget.waiting, order) == (2, [])
        first.release()
        await asyncio.gather(*tasks)
        assert order == ["large", "small"]
        assert (budget.used, budget.waiting) == (0, 0)

    run(work())


def test_a_reservation_over_the_budget_is_alone() -> None:
    async def work() -> None:
        budget = MemoryBudget(100)
        small = await budget.reserve(10)
        large = asyncio.create_task(budget.reserve(1000))
        await asyncio.sleep(0)
        assert not large.done()
        small.release()
        reservation = await large
        later = asyncio.create_task(budget.reserve(1))
        await asyncio.sleep(0)
        assert not later.done()
        reservation.release()
        (await later).release()
        assert budget.used == 0

    run(work())


def test_a_reservation_changes_its_size() -> None:
    async def work() -> None:
        budget = MemoryBudget(100)
        one, other = await budget.reserve(50), await budget.reserve(50)
        # A waiting reservation holds nothing, so two cannot wait for each other.
        tasks = [asyncio.create_task(one.replace(60)), asyncio.create_task(other.replace(60))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        one.resize(20)
        await asyncio.gather(*tasks)
        assert budget.used == 80
        other.add(100)
        assert (budget.used, other.size) == (180, 160)
        one.release()
        one.release()
        other.release()
        assert budget.used == 0

    run(work())


@given(st.integers(0, 2**32), st.integers(1, 300))
def test_cancelled_reservations_are_released(seed: int, size: int) -> None:
    chance = random.Random(seed)

    async def work() -> None:
        budget, most = MemoryBudget(size), 0

        async def client() -> None:
            nonlocal most
            reservation = Reservation(budget)
            try:
                for _ in range(5):
                    await reservation.replace(chance.randrange(1, 100))
                    most = max(most, budget.used)
                    await asyncio.sleep(0)
                    reservation.resize(chance.randrange(reservation.size + 1))
                    await asyncio.sleep(0)
            finally:
                reservation.release()

        tasks = [asyncio.create_task(client()) for _ in range(20)]
        while not all(task.done() for task in tasks):
            if chance.random() < 0.2:
                chance.choice(tasks).cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (budget.used, budget.waiting) == (0, 0)
        assert most <= max(size, 99)

    run(work())
