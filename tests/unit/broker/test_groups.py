"""The group coordinator: every state and transition, with a clock and ids of the test."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.broker.groups import Coordinator
from tailrace.broker.membership import GroupError, Member, MemberIdRequiredError, State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from tailrace.broker.membership import Group, JoinResult

GROUP = "g"
SESSION_S, REBALANCE_S = 10.0, 30.0
RANGE, STICKY = ("range", b"r"), ("sticky", b"s")


class Bench:
    """A coordinator with a clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._ids = Counter[str]()
        self.groups = Coordinator(clock=lambda: self.now, new_suffix=self._suffix)

    def _suffix(self) -> str:
        self._ids["id"] += 1
        return str(self._ids["id"])

    @property
    def group(self) -> Group:
        group = self.groups.find(GROUP)
        assert group is not None
        return group

    async def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (RANGE,),
        protocol_type: str = "consumer",
        group: str = GROUP,
        session_s: float = SESSION_S,
        require_member_id: bool = False,
        can_skip_assignment: bool = True,
    ) -> JoinResult:
        member = Member(
            id=member_id,
            instance=instance,
            client="client",
            host="127.0.0.1",
            session_s=session_s,
            rebalance_s=REBALANCE_S,
            protocol_type=protocol_type,
            protocols=protocols,
        )
        return await self.groups.join(
            group,
            member,
            require_member_id=require_member_id,
            can_skip_assignment=can_skip_assignment,
        )

    async def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes], **given: Any
    ) -> bytes:
        values: dict[str, Any] = {"instance": None, "protocol_type": None, "protocol": None}
        return await self.groups.sync(GROUP, generation, member_id, assignments, **(values | given))

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> None:
        self.groups.heartbeat(GROUP, generation, member_id, instance=instance)

    def commit(self, member_id: str, generation: int, instance: str | None = None) -> None:
        self.groups.check_commit(GROUP, generation, member_id, instance=instance)

    async def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a request until it waits."""
        task = asyncio.create_task(coroutine)
        await asyncio.sleep(0)
        return task

    async def stable(self, *instances: str | None) -> list[JoinResult]:
        """A group with one member per instance, the first of them the leader."""
        joined = [await self.join(instance=instances[0])]
        for instance in instances[1:]:
            task = await self.start(self.join(instance=instance))
            again = [
                await self.start(self.join(one.member, instance=name))
                for one, name in zip(joined, instances, strict=False)
            ]
            joined = [*(await asyncio.gather(*again)), await task]
        assignments = {one.member: b"share of " + one.member.encode() for one in joined}
        tasks = [
            await self.start(
                self.sync(one.member, one.generation, assignments if one.members else {})
            )
            for one in reversed(joined)
        ]
        await asyncio.gather(*tasks)
        assert self.group.state is State.STABLE
        return joined


def scenario(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs in an event loop with a new bench."""

    def run() -> None:
        async def work() -> None:
            await test(Bench())

        asyncio.run(work())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


async def failing(awaitable: Awaitable[Any]) -> str:
    with pytest.raises(GroupError) as caught:
        await awaitable
    return str(caught.value)


def refused(call: Callable[..., None], *arguments: Any, **given: Any) -> str:
    with pytest.raises(GroupError) as caught:
        call(*arguments, **given)
    return str(caught.value)


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
