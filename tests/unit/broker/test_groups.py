"""The group coordinator: joining, syncing, leaving, committing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.broker.membership import MemberIdRequiredError, State
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

# Join


@scenario
async def test_the_first_member_leads_at_once(bench: Bench) -> None:
    result = await bench.join()
    assert (result.generation, result.leader, result.member) == (1, "client-1", "client-1")
    assert (result.protocol_type, result.protocol) == ("consumer", "range")
    assert result.members == (("client-1", None, b"r"),)
    assert bench.group.state is State.SYNCING


@scenario
async def test_a_new_member_gets_an_id_first(bench: Bench) -> None:
    with pytest.raises(MemberIdRequiredError) as caught:
        await bench.join(require_member_id=True)
    assert caught.value.member_id == "client-1"
    assert bench.group.members == {}
    result = await bench.join("client-1", require_member_id=True)
    assert result.member == "client-1"
    assert bench.group.pending_ids == {}


@scenario
async def test_a_rebalance_waits_for_ids_that_were_given_out(bench: Bench) -> None:
    with pytest.raises(MemberIdRequiredError):
        await bench.join(require_member_id=True)
    waiting = await bench.start(bench.join())
    assert not waiting.done()
    other = await bench.start(bench.join("client-1", require_member_id=True))
    assert {(await waiting).generation, (await other).generation} == {1}


@scenario
async def test_an_id_that_is_not_used_expires(bench: Bench) -> None:
    with pytest.raises(MemberIdRequiredError):
        await bench.join(require_member_id=True)
    bench.now += SESSION_S + 1
    bench.groups.expire()
    assert bench.groups.find(GROUP) is None
    assert await failing(bench.join("client-1")) == "unknown_member_id"


@scenario
async def test_a_second_member_starts_a_rebalance(bench: Bench) -> None:
    first = await bench.join()
    await bench.sync(first.member, 1, {first.member: b"all"})
    second = await bench.start(bench.join())
    assert not second.done()
    assert bench.group.state is State.JOINING
    assert refused(bench.heartbeat, first.member, 1) == "rebalance_in_progress"
    again = await bench.join(first.member)
    other = await second
    assert again.generation == other.generation == 2
    assert [member_id for member_id, _, _ in again.members] == [first.member, other.member]
    assert other.members == ()
    assert again.leader == other.leader == first.member


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"group": ""}, "invalid_group_id"),
        ({"session_s": 0.5}, "invalid_session_timeout"),
        ({"session_s": 1801.0}, "invalid_session_timeout"),
        ({"member_id": "other"}, "unknown_member_id"),
        ({"protocols": ()}, "inconsistent_group_protocol"),
    ],
)
def test_requests_that_cannot_join(given: dict[str, Any], error: str) -> None:
    async def work() -> None:
        assert await failing(Bench().join(**given)) == error

    asyncio.run(work())


@scenario
async def test_all_members_need_a_common_protocol(bench: Bench) -> None:
    await bench.join()
    assert await failing(bench.join(protocols=(STICKY,))) == "inconsistent_group_protocol"
    other_type = bench.join(protocol_type="connect")
    assert await failing(other_type) == "inconsistent_group_protocol"
    assert list(bench.group.members) == ["client-1"]


@scenario
async def test_a_retried_join_does_not_rebalance(bench: Bench) -> None:
    first, second = await bench.stable(None, None)
    again = await bench.join(second.member)
    assert again.generation == second.generation
    assert bench.group.state.value == "Stable"
    # While the leader computes the assignments, any member may retry.
    third = await bench.start(bench.join())
    await asyncio.gather(bench.join(first.member), bench.join(second.member), third)
    assert bench.group.state.value == "CompletingRebalance"
    retried = await bench.join(first.member)
    assert retried.generation == 3
    assert len(retried.members) == 3


@scenario
async def test_a_leader_that_joins_again_starts_a_rebalance(bench: Bench) -> None:
    """Its subscription matches other partitions now: only it can compute assignments."""
    first, second = await bench.stable(None, None)
    waiting = await bench.start(bench.join(first.member))
    assert not waiting.done()
    await bench.join(second.member)
    assert (await waiting).generation == first.generation + 1


@scenario
async def test_changed_metadata_starts_a_rebalance(bench: Bench) -> None:
    """A cooperative member joins again with fewer partitions, at once after it revoked them."""
    first, second = await bench.stable(None, None)
    owned = (("range", b"owns 1"),)
    waiting = await bench.start(bench.join(second.member, protocols=owned))
    assert bench.group.state is State.JOINING
    leader = await bench.join(first.member)
    await waiting
    metadata = {member_id: data for member_id, _, data in leader.members}
    assert metadata[second.member] == b"owns 1"


@scenario
async def test_a_join_that_replaces_a_waiting_one(bench: Bench) -> None:
    """A client that lost its connection sends the request again; the old request fails."""
    first, second = await bench.stable(None, None)
    lost = await bench.start(bench.join(second.member, protocols=(("range", b"2"),)))
    again = await bench.start(bench.join(second.member, protocols=(("range", b"3"),)))
    assert await failing(lost) == "rebalance_in_progress"
    await bench.join(first.member)
    assert (await again).generation == second.generation + 1


@scenario
async def test_the_protocol_that_most_members_prefer(bench: Bench) -> None:
    first = await bench.join(protocols=(RANGE, STICKY))
    others = [await bench.start(bench.join(protocols=(STICKY, RANGE))) for _ in range(2)]
    again = await bench.join(first.member, protocols=(RANGE, STICKY))
    assert again.protocol == "sticky"
    assert {data for _, _, data in again.members} == {b"s"}
    await asyncio.gather(*others)


# Sync


@scenario
async def test_members_wait_for_the_leader(bench: Bench) -> None:
    first = await bench.join()
    second_joining = await bench.start(bench.join())
    first = await bench.join(first.member)
    second = await second_joining
    waiting = await bench.start(bench.sync(second.member, 2, {}))
    assert not waiting.done()
    shares = {first.member: b"1", second.member: b"2"}
    assert await bench.sync(first.member, 2, shares) == b"1"
    assert await waiting == b"2"
    assert bench.group.state is State.STABLE
    # A retry gets the same assignment.
    assert await bench.sync(second.member, 2, {}) == b"2"


@scenario
async def test_a_member_without_partitions_gets_an_empty_assignment(bench: Bench) -> None:
    first = await bench.join()
    assert await bench.sync(first.member, 1, {"other": b"x"}) == b""


@scenario
async def test_a_rebalance_ends_a_waiting_sync(bench: Bench) -> None:
    first = await bench.join()
    joining = await bench.start(bench.join())
    first = await bench.join(first.member)
    second = await joining
    waiting = await bench.start(bench.sync(second.member, 2, {}))
    third = await bench.start(bench.join())
    assert await failing(waiting) == "rebalance_in_progress"
    assert await failing(bench.sync(second.member, 2, {})) == "rebalance_in_progress"
    third.cancel()


@scenario
async def test_syncs_that_are_refused(bench: Bench) -> None:
    assert await failing(bench.sync("client-1", 1, {})) == "unknown_member_id"
    first = await bench.join()
    assert await failing(bench.sync("other", 1, {})) == "unknown_member_id"
    assert await failing(bench.sync(first.member, 7, {})) == "illegal_generation"
    other = bench.sync(first.member, 1, {}, protocol="sticky")
    assert await failing(other) == "inconsistent_group_protocol"
    other = bench.sync(first.member, 1, {}, protocol_type="connect")
    assert await failing(other) == "inconsistent_group_protocol"
    same = bench.sync(first.member, 1, {}, protocol="range", protocol_type="consumer")
    assert await same == b""


# Leave


@scenario
async def test_a_member_leaves(bench: Bench) -> None:
    first, second = await bench.stable(None, None)
    bench.groups.leave(GROUP, first.member)
    assert bench.group.state is State.JOINING
    result = await bench.join(second.member)
    assert (result.leader, result.generation) == (second.member, 3)
    assert refused(bench.groups.leave, GROUP, first.member) == "unknown_member_id"


@scenario
async def test_a_leaving_member_ends_its_own_requests(bench: Bench) -> None:
    first, second = await bench.stable(None, None)
    waiting = await bench.start(bench.join(second.member, protocols=(("range", b"new"),)))
    bench.groups.leave(GROUP, second.member)
    assert await failing(waiting) == "unknown_member_id"
    assert (await bench.join(first.member)).generation == 3


@scenario
async def test_an_id_that_was_not_used_may_leave(bench: Bench) -> None:
    (first,) = await bench.stable(None)
    with pytest.raises(MemberIdRequiredError) as caught:
        await bench.join(require_member_id=True)
    waiting = await bench.start(bench.join(first.member))
    assert not waiting.done()
    bench.groups.leave(GROUP, caught.value.member_id)
    assert (await waiting).generation == 2


@scenario
async def test_leaves_that_are_refused(bench: Bench) -> None:
    assert refused(bench.groups.leave, GROUP, "x") == "unknown_member_id"
    (first,) = await bench.stable("one")
    assert refused(bench.groups.leave, GROUP, "", instance="two") == "unknown_member_id"
    assert refused(bench.groups.leave, GROUP, "old", instance="one") == "fenced_instance_id"
    bench.groups.leave(GROUP, "", instance="one")
    assert first.member not in bench.group.members


# Commits and deletion


@scenario
async def test_commits_of_the_present_generation(bench: Bench) -> None:
    first, second = await bench.stable(None, None)
    bench.commit(first.member, 2)
    assert refused(bench.commit, first.member, 1) == "illegal_generation"
    assert refused(bench.commit, first.member, 3) == "illegal_generation"
    assert refused(bench.commit, "other", 2) == "unknown_member_id"
    assert refused(bench.commit, "", -1) == "unknown_member_id"
    # During a rebalance members commit what they read before it.
    waiting = await bench.start(bench.join(first.member))
    bench.commit(second.member, 2)
    await asyncio.gather(waiting, bench.join(second.member))
    # Before the assignments are known a commit could be of partitions of another member.
    assert bench.group.state is State.SYNCING
    assert refused(bench.commit, first.member, 3) == "rebalance_in_progress"
    assert refused(bench.commit, first.member, 2) == "illegal_generation"


@scenario
async def test_commits_without_a_membership(bench: Bench) -> None:
    """Consumers with `assign`, and tools that move the offsets of a stopped group."""
    bench.commit("", -1)
    assert refused(bench.commit, "client-1", 5) == "illegal_generation"
    (first,) = await bench.stable(None)
    assert refused(bench.commit, "", -1) == "unknown_member_id"
    bench.groups.leave(GROUP, first.member)
    bench.commit("", -1)


@scenario
async def test_heartbeats_of_another_generation(bench: Bench) -> None:
    assert refused(bench.heartbeat, "client-1", 1) == "unknown_member_id"
    (first,) = await bench.stable(None)
    bench.heartbeat(first.member, 1)
    assert refused(bench.heartbeat, first.member, 2) == "illegal_generation"
    assert refused(bench.heartbeat, "other", 1) == "unknown_member_id"


@scenario
async def test_only_a_group_without_members_is_deleted(bench: Bench) -> None:
    (first,) = await bench.stable(None)
    assert refused(bench.groups.delete, GROUP) == "non_empty_group"
    bench.groups.leave(GROUP, first.member)
    bench.groups.delete(GROUP)
    assert bench.groups.find(GROUP) is None
    bench.groups.delete("unknown")


@scenario
async def test_groups_do_not_share_members(bench: Bench) -> None:
    first = await bench.join()
    other = await bench.join(group="other")
    assert (first.generation, other.generation) == (1, 1)
    assert {group.id for group in bench.groups.all()} == {GROUP, "other"}
    assert await failing(bench.join(first.member, group="other")) == "unknown_member_id"
