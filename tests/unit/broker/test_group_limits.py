"""Limits of consumer groups: the memory of their members, and their number."""

from __future__ import annotations

import asyncio

from tailrace.broker.groups import Coordinator
from tailrace.broker.limits import Limits
from tailrace.broker.membership import MemberIdRequiredError
from tests.unit.broker.coordinating import SESSION_S, Bench, failing, scenario

FULL = "group_max_size_reached"
KB = 1 << 10


class Limited(Bench):
    """A coordinator with limits, whose memory the test sees."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.sizes = [0]
        self.groups = Coordinator(
            limits,
            on_size=self.sizes.append,
            clock=lambda: self.now,
            new_suffix=self._suffix,
        )

    @property
    def size(self) -> int:
        return self.sizes[-1]


def metadata(size: int) -> tuple[tuple[str, bytes], ...]:
    return (("range", bytes(size)),)


def test_metadata_that_is_too_large_is_refused() -> None:
    async def work() -> None:
        bench = Limited(Limits(member_bytes=100 * KB))
        assert await failing(bench.join(protocols=metadata(101 * KB))) == FULL
        two = (("range", bytes(60 * KB)), ("sticky", bytes(60 * KB)))
        assert await failing(bench.join(protocols=two)) == FULL
        bench.groups.expire()
        assert bench.size == 0
        await bench.join(protocols=metadata(90 * KB))
        assert 90 * KB < bench.size < 100 * KB

    asyncio.run(work())


def test_all_groups_together_have_a_quarter_of_the_memory() -> None:
    async def work() -> None:
        bench = Limited(Limits(memory_bytes=400 * KB))
        for number in range(4):
            await bench.join(group=f"g{number}", protocols=metadata(20 * KB))
        assert await failing(bench.join(group="g4", protocols=metadata(20 * KB))) == FULL
        assert 80 * KB < bench.size <= 100 * KB
        # Members that expire make room.
        bench.now += SESSION_S + 1
        bench.groups.expire()
        assert bench.size == 0
        await bench.join(group="g4", protocols=metadata(20 * KB))
        bench.groups.clear()
        assert bench.size == 0

    asyncio.run(work())


def test_a_member_that_joins_again_is_counted_once() -> None:
    async def work() -> None:
        bench = Limited(Limits(memory_bytes=400 * KB))
        joined = await bench.join(protocols=metadata(60 * KB))
        for _ in range(5):
            await bench.join(joined.member, protocols=metadata(60 * KB))
        assert bench.size < 70 * KB

    asyncio.run(work())


def test_assignments_are_counted() -> None:
    async def work() -> None:
        bench = Limited(Limits(memory_bytes=400 * KB))
        joined = await bench.join()
        member, generation = joined.member, joined.generation
        assert await failing(bench.sync(member, generation, {member: bytes(200 * KB)})) == FULL
        await bench.sync(member, generation, {member: bytes(50 * KB), "other": bytes(200 * KB)})
        bench.groups.expire()
        assert 50 * KB < bench.size < 60 * KB

    asyncio.run(work())


def test_the_number_of_members_is_limited() -> None:
    """Ids that were given out count, and members that are known may always join again."""

    async def work() -> None:
        bench = Limited(Limits(group_members=3))
        first = await bench.join(instance="static")
        waiting = await bench.start(bench.join())
        try:
            await bench.join(require_member_id=True)
        except MemberIdRequiredError as required:
            pending = required.member_id
        assert await failing(bench.join()) == FULL
        assert await failing(bench.join(require_member_id=True)) == FULL
        assert await failing(bench.join(instance="another")) == FULL
        # Not "full": a member that has expired starts over.
        assert await failing(bench.join("gone")) == "unknown_member_id"
        again = [
            await bench.start(bench.join(pending)),
            await bench.start(bench.join(first.member, instance="static")),
        ]
        assert {(await one).generation for one in (waiting, *again)} == {2}

    asyncio.run(work())


@scenario
async def test_only_the_leader_sends_assignments(bench: Bench) -> None:
    leader, other = await bench.stable(None, None)
    del leader
    again = await bench.start(bench.join(other.member, protocols=(("range", b"changed"),)))
    leading = await bench.start(bench.join("client-1"))
    generation = (await again).generation
    await leading
    assert await failing(bench.sync(other.member, generation, {"x": b"1"})) == "invalid_request"
