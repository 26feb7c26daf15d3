"""The group coordinator: sessions that expire, and static members that restart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.broker.membership import State
from tests.unit.broker.coordinating import (
    GROUP,
    RANGE,
    SESSION_S,
    STICKY,
    Bench,
    failing,
    refused,
    scenario,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# Sessions and deadlines


@scenario
async def test_a_silent_member_expires(bench: Bench) -> None:
    first, second = await bench.stable(None, None)
    bench.now += SESSION_S
    bench.heartbeat(first.member, first.generation)
    bench.groups.expire()
    assert set(bench.group.members) == {first.member, second.member}
    bench.now += 0.1
    bench.groups.expire()
    assert set(bench.group.members) == {first.member}
    assert bench.group.state is State.JOINING
    assert refused(bench.heartbeat, second.member, 2) == "unknown_member_id"


@scenario
async def test_requests_keep_a_session_alive(bench: Bench) -> None:
    (first,) = await bench.stable(None)
    requests: list[Callable[[], None]] = [
        lambda: bench.heartbeat(first.member, 1),
        lambda: bench.commit(first.member, 1),
    ]
    for request in requests * 3:
        bench.now += SESSION_S - 1
        request()
        bench.groups.expire()
    assert bench.group.state is State.STABLE


@scenario
async def test_a_member_that_waits_for_others_does_not_expire(bench: Bench) -> None:
    first, second = await bench.stable(None, None)
    waiting = await bench.start(bench.join())
    bench.now += SESSION_S + 1
    bench.groups.expire()
    # The others have expired; the one whose request waits is the whole group.
    result = await waiting
    assert set(bench.group.members) == {result.member}
    assert result.leader == result.member
    assert result.generation == first.generation + 1 == second.generation + 1


@scenario
async def test_a_rebalance_ends_at_its_deadline(bench: Bench) -> None:
    """A member that heartbeats and does not join again is removed, as with a slow consumer."""
    first, second = await bench.stable(None, None)
    waiting = await bench.start(bench.join(first.member))
    for _ in range(3):
        bench.now += SESSION_S - 1
        assert refused(bench.heartbeat, second.member, 2) == "rebalance_in_progress"
        bench.groups.expire()
        assert not waiting.done()
    bench.now += SESSION_S - 1
    assert refused(bench.heartbeat, second.member, 2) == "rebalance_in_progress"
    bench.groups.expire()
    result = await waiting
    assert [member_id for member_id, _, _ in result.members] == [first.member]
    assert refused(bench.heartbeat, second.member, 3) == "unknown_member_id"


@scenario
async def test_the_next_member_leads_after_the_leader_expired(bench: Bench) -> None:
    first, second = await bench.stable(None, None)
    bench.now += SESSION_S + 1
    waiting = await bench.start(bench.join(second.member, protocols=(("range", b"new"),)))
    bench.groups.expire()
    result = await waiting
    assert result.leader == second.member != first.member


@scenario
async def test_a_group_without_members_is_forgotten(bench: Bench) -> None:
    (first,) = await bench.stable(None)
    bench.groups.leave(GROUP, first.member)
    assert bench.group.state is State.EMPTY
    assert bench.group.generation == 2
    bench.groups.expire()
    assert bench.groups.find(GROUP) is None
    assert list(bench.groups.all()) == []


# Static members


@scenario
async def test_a_static_member_restarts_without_a_rebalance(bench: Bench) -> None:
    first, second = await bench.stable("one", "two")
    again = await bench.join(instance="two")
    assert again.generation == second.generation
    assert again.member != second.member
    assert bench.group.state is State.STABLE
    share = await bench.sync(again.member, 2, {}, instance="two")
    assert share == b"share of " + second.member.encode()
    bench.heartbeat(first.member, 2, "one")


@scenario
async def test_the_old_process_of_a_static_member_is_fenced(bench: Bench) -> None:
    _, second = await bench.stable("one", "two")
    await bench.join(instance="two")
    old = second.member
    assert refused(bench.heartbeat, old, 2, "two") == "fenced_instance_id"
    assert refused(bench.commit, old, 2, "two") == "fenced_instance_id"
    assert await failing(bench.sync(old, 2, {}, instance="two")) == "fenced_instance_id"
    assert await failing(bench.join(old, instance="two")) == "fenced_instance_id"
    assert refused(bench.groups.leave, GROUP, old, instance="two") == "fenced_instance_id"


@scenario
async def test_a_static_leader_restarts(bench: Bench) -> None:
    first, _ = await bench.stable("one", "two")
    again = await bench.join(instance="one", can_skip_assignment=True)
    assert (again.leader, again.skip_assignment) == (again.member, True)
    assert len(again.members) == 2
    assert bench.group.leader == again.member
    assert again.generation == first.generation


@scenario
async def test_a_static_leader_restarts_with_an_old_client(bench: Bench) -> None:
    """Before v9 a leader cannot skip the assignment: the response names its old id as leader."""
    first, _ = await bench.stable("one", "two")
    again = await bench.join(instance="one", can_skip_assignment=False)
    assert (again.leader, again.members) == (first.member, ())
    assert again.member != first.member
    assert bench.group.leader == again.member


@scenario
async def test_a_static_member_that_restarts_during_a_rebalance(bench: Bench) -> None:
    first, second = await bench.stable("one", "two")
    waiting = await bench.start(bench.join(first.member, instance="one"))
    old = await bench.start(bench.join(second.member, instance="two", protocols=(("range", b"x"),)))
    results = await asyncio.gather(waiting, old)
    assert {one.generation for one in results} == {3}
    rejoining = await bench.start(
        bench.join(first.member, instance="one", protocols=(STICKY, RANGE))
    )
    restarted = await bench.start(bench.join(instance="two"))
    results = await asyncio.gather(rejoining, restarted)
    assert {one.generation for one in results} == {4}
    assert second.member not in bench.group.members


@scenario
async def test_a_restart_that_elects_another_protocol_rebalances(bench: Bench) -> None:
    protocols = (RANGE, STICKY)
    first = await bench.join(instance="one", protocols=protocols)
    await bench.sync(first.member, 1, {}, instance="one")
    again = await bench.join(instance="one", protocols=(STICKY, RANGE))
    assert (again.generation, again.protocol) == (2, "sticky")


@scenario
async def test_a_static_member_joins_without_an_extra_request(bench: Bench) -> None:
    result = await bench.join(instance="one", require_member_id=True)
    assert result.member == "one-1"
