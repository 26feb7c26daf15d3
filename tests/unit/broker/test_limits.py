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


def test_growing_reservations_do_not_wait_for_each_other() -> None:
    """GIVEN a budget that is used up by reservations that all grow THEN one at a time may exceed
    it, and new reservations come after all of them."""

    async def work() -> None:
        budget, order = MemoryBudget(100), []
        held = [await budget.reserve(50), await budget.reserve(50)]

        async def grow(number: int) -> None:
            await held[number].grow(60)
            order.append(number)

        async def reserve() -> None:
            reservation = await budget.reserve(1)
            order.append(2)
            reservation.release()

        tasks = [asyncio.create_task(one) for one in (grow(0), grow(1), reserve())]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (order, budget.used, budget.waiting) == ([0], 160, 2)
        # It does not wait for the others.
        await held[0].grow(10)
        held[0].release()
        await tasks[1]
        assert order == [0, 1]
        held[1].release()
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2]
        assert (budget.used, budget.waiting) == (0, 0)

    run(work())


def test_a_reservation_within_the_budget_again_lets_others_exceed_it() -> None:
    async def work() -> None:
        budget = MemoryBudget(100)
        one, other = Reservation(budget), Reservation(budget)
        await one.grow(200)
        waiting = asyncio.create_task(other.grow(150))
        await asyncio.sleep(0)
        assert not waiting.done()
        one.resize(10)
        await waiting
        assert budget.used == 160
        one.release()
        other.release()
        assert budget.used == 0

    run(work())


def test_kept_memory_leaves_less_for_requests() -> None:
    async def work() -> None:
        budget = MemoryBudget(100)
        budget.keep(60)
        one = await budget.reserve(30)
        other = asyncio.create_task(budget.reserve(20))
        await asyncio.sleep(0)
        assert not other.done()
        budget.keep(0)
        (await other).release()
        # One reservation is granted however much is kept.
        one.release()
        budget.keep(100)
        (await budget.reserve(1000)).release()
        assert budget.used == 0

    run(work())


@given(st.integers(0, 2**32), st.integers(1, 300))
def test_reservations_that_grow_never_wait_for_ever(seed: int, size: int) -> None:
    """GIVEN clients that reserve, grow, shrink and are cancelled at any time THEN all of them end,
    nothing is leaked, and at most one of them is over the budget."""
    chance = random.Random(seed)

    async def work() -> None:
        budget, most = MemoryBudget(size), 0

        async def client() -> None:
            nonlocal most
            reservation = Reservation(budget)
            try:
                for _ in range(4):
                    await reservation.replace(chance.randrange(1, 60))
                    for _ in range(chance.randrange(4)):
                        await reservation.grow(chance.randrange(1, 60))
                        most = max(most, budget.used)
                        await asyncio.sleep(0)
                    reservation.resize(chance.randrange(reservation.size + 1))
                    budget.keep(chance.randrange(size))
            finally:
                reservation.release()

        tasks = [asyncio.create_task(client()) for _ in range(20)]
        for _ in range(5000):
            if all(task.done() for task in tasks):
                break
            if chance.random() < 0.1:
                chance.choice(tasks).cancel()
            await asyncio.sleep(0)
        assert all(task.done() for task in tasks), "clients wait for each other"
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (budget.used, budget.waiting) == (0, 0)
        # One new reservation, or one that has grown three times, may be over the budget.
        assert most <= size + 4 * 60

    run(work())


def test_a_reservation_moves_to_another_budget() -> None:
    async def work() -> None:
        one, other = MemoryBudget(100), MemoryBudget(50)
        reservation = await one.reserve(80)
        assert one.busy(30)
        assert not one.busy(20)
        reservation.move(other)
        await reservation.replace(40)
        assert (one.used, other.used) == (0, 40)
        reservation.release()
        assert other.used == 0

    run(work())
