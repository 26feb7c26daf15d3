"""The group coordinator: which consumer reads which partitions.

A group collects its members, one of them (the leader) assigns the partitions, and the coordinator
hands out the assignments. When a member joins, leaves or expires the group rebalances: it starts
over with a new generation. A member that sends nothing for its session timeout is removed.

Membership is in memory and is lost when the broker restarts: members then get `unknown_member_id`,
join again and resume from their committed offsets. Offsets are not here: `api.offsets` stores them
in a table and asks `check_commit` first.

Members stay in memory between requests, so their number and size are limited. The memory of all
groups is counted anew whenever sessions are checked, and between these checks with each new member.

The coordinator reads time and new ids from its arguments only, so it can be tested without waiting.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.broker.limits import Limits
from tailrace.broker.membership import (
    Group,
    GroupError,
    JoinResult,
    Member,
    MemberIdRequiredError,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MIN_SESSION_S, _MAX_SESSION_S = 1.0, 1800.0


def _random_suffix() -> str:
    return str(uuid.uuid4())


class Coordinator:
    """All groups of this broker."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        on_size: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        new_suffix: Callable[[], str] = _random_suffix,
    ) -> None:
        self._limits = limits or Limits()
        self._on_size = on_size
        self._size = 0
        """Memory of all groups."""
        self._clock = clock
        self._new_suffix = new_suffix
        self._groups: dict[str, Group] = {}

    def find(self, name: str) -> Group | None:
        """The group, if it has or recently had members."""
        return self._groups.get(name)

    def all(self) -> Iterator[Group]:
        """Every group that has or recently had members."""
        yield from self._groups.values()

    def clear(self) -> None:
        """Forget all members. Their next request gets `unknown_member_id`."""
        self._groups.clear()
        self._resize(0)

    def delete(self, name: str) -> None:
        """Delete a group. An error if it has members."""
        group = self._groups.get(name)
        if group is not None and group.members:
            raise GroupError("non_empty_group")
        self._groups.pop(name, None)

    async def join(
        self, name: str, member: Member, *, require_member_id: bool, can_skip_assignment: bool
    ) -> JoinResult:
        """Add a member, and wait until all members of the group have joined.

        | the member is                              | the group | the response               |
        |--------------------------------------------|-----------|----------------------------|
        | new, `require_member_id`                   | any       | `member_id_required`       |
        | new, or with changed protocols             | any       | after a rebalance          |
        | known, unchanged (a retry)                 | SYNCING   | at once                    |
        | known, unchanged, not the leader           | STABLE    | at once                    |
        | known, the leader: it joins again because  | STABLE    | after a rebalance          |
        | the partitions of a topic have changed     |           |                            |
        | static, restarted without an id            | STABLE    | at once, same assignment   |
        | static, restarted, elects another protocol | STABLE    | after a rebalance          |

        `require_member_id`: from JoinGroup v4 on (KIP-394) a new member joins twice. The first
        response gives it an id, so a client that crashes between the two leaves no member.
        `can_skip_assignment`: from v9 on (KIP-814) a leader understands that nothing changed.
        """
        group = self._group_to_join(name, member)
        self._admit(group, member)
        restarted = member.instance if not member.id else None
        replaced = group.static_member(restarted) if restarted else None
        known = self._identify(group, member, require_member_id=require_member_id)
        if replaced is not None and group.state is State.STABLE:
            group.members[member.id] = member
            if group.elect_protocol() == group.protocol:
                return self._resume_static(group, member, replaced, can_skip=can_skip_assignment)
        if known is not None and _keeps_generation(group, known, member):
            known.last_seen = self._clock()
            return group.join_result(known)
        return await self._join_next_generation(group, member, known)

    def _group_to_join(self, name: str, member: Member) -> Group:
        """The group, created for its first member. An error if the member can not join it."""
        if not name:
            raise GroupError("invalid_group_id")
        if not _MIN_SESSION_S <= member.session_s <= _MAX_SESSION_S:
            raise GroupError("invalid_session_timeout")
        if member.id and name not in self._groups:
            raise GroupError("unknown_member_id")
        group = self._groups.setdefault(name, Group(id=name))
        if not member.protocols or not group.supports(member):
            raise GroupError("inconsistent_group_protocol")
        return group

    def _admit(self, group: Group, member: Member) -> None:
        """Count the memory of a joining member. An error if it is too large, or one too many."""
        limits, ids = self._limits, {**group.members, **group.pending_ids}
        known = group.members.get(member.id) or group.static_member(member.instance)
        if member.id and member.id not in ids:
            return  # `_identify` refuses it.
        full = not member.id and known is None and len(ids) >= limits.group_members
        if full or member.metadata_bytes > limits.member_bytes:
            raise GroupError("group_max_size_reached")
        self._count(member.memory_bytes - (known.memory_bytes if known is not None else 0))

    def _count(self, more: int) -> None:
        """Count more memory. An error if all groups together would have too much."""
        if more > 0 and self._size + more > self._limits.kept_bytes:
            raise GroupError("group_max_size_reached")
        self._resize(self._size + more)

    def _resize(self, size: int) -> None:
        if size != self._size:
            self._size = size
            self._on_size(size)

    def _identify(self, group: Group, member: Member, *, require_member_id: bool) -> Member | None:
        """Give a new member its id. Returns the member as the group knows it, None for a new one.

        A static member that joins without an id has restarted: it takes the place of the member
        with its instance, whose requests get `fenced_instance_id` from now on.
        """
        if member.id:
            if group.pending_ids.pop(member.id, None) is None:
                group.member(member.id, member.instance)
            return group.members.get(member.id)
        new_id = f"{member.instance or member.client or 'member'}-{self._new_suffix()}"
        if member.instance is None and require_member_id:
            group.pending_ids[new_id] = self._clock() + member.session_s
            raise MemberIdRequiredError(new_id)
        member.id = new_id
        replaced = group.static_member(member.instance)
        if replaced is not None:
            replaced.fail("fenced_instance_id")
            del group.members[replaced.id]
            if group.leader == replaced.id:
                group.leader = new_id
        return None

    def _resume_static(
        self, group: Group, member: Member, replaced: Member, *, can_skip: bool
    ) -> JoinResult:
        """A static member that restarted gets its old assignment, without a rebalance (KIP-345)."""
        member.last_seen, member.assignment = self._clock(), replaced.assignment
        result = group.join_result(member)
        if member.id != group.leader:
            return result
        if can_skip:
            return replace(result, skip_assignment=True)
        # A leader computes assignments, but in a stable group no member fetches them. Before v9 the
        # response has no field for that, so it names the old id as the leader.
        return replace(result, leader=replaced.id, members=())

    async def _join_next_generation(
        self, group: Group, member: Member, known: Member | None
    ) -> JoinResult:
        if known is not None:
            member.last_seen, member.assignment = known.last_seen, known.assignment
            known.fail("rebalance_in_progress")
        group.members[member.id] = member
        joining: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        member.joining = joining
        if group.state is not State.JOINING:
            self._rebalance(group, first=group.state is State.EMPTY)
        self._complete(group)
        return await joining

    def _rebalance(self, group: Group, *, first: bool = False) -> None:
        """Wait for all members to join again, at most for the longest rebalance timeout."""
        group.state = State.JOINING
        longest_s = max((member.rebalance_s for member in group.members.values()), default=0.0)
        group.rebalance_deadline = self._clock() + (0.0 if first else longest_s)
        for member in group.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_exception(GroupError("rebalance_in_progress"))
            member.syncing = None

    def _complete(self, group: Group, *, now: float | None = None) -> None:
        """Start the next generation if all members have joined, or the deadline has passed.

        Without `now` the deadline is not looked at: only `expire` ends a rebalance by time.
        """
        missing = [m for m in group.members.values() if m.joining is None]
        overdue = now is not None and now >= group.rebalance_deadline
        if group.state is not State.JOINING or ((missing or group.pending_ids) and not overdue):
            return
        for member in missing:
            del group.members[member.id]
        group.pending_ids.clear()
        group.generation += 1
        if not group.members:
            group.state, group.leader, group.protocol = State.EMPTY, "", ""
            return
        if group.leader not in group.members:
            group.leader = next(iter(group.members))
        group.protocol_type = group.members[group.leader].protocol_type
        group.protocol = group.elect_protocol()
        group.state = State.SYNCING
        for member in group.members.values():
            joining, member.joining = member.joining, None
            member.last_seen = self._clock()
            if joining is not None and not joining.done():
                joining.set_result(group.join_result(member))

    async def sync(
        self, name: str, generation: int, member_id: str, assignments: dict[str, bytes],
        *, instance: str | None, protocol_type: str | None, protocol: str | None,
    ) -> bytes:  # fmt: skip
        """The member's assignment, as soon as the leader has sent the assignments of all."""
        group, member = self._current_member(name, generation, member_id, instance)
        agreed = (group.protocol_type, group.protocol)
        if (protocol_type or agreed[0], protocol or agreed[1]) != agreed:
            raise GroupError("inconsistent_group_protocol")
        if group.state is State.JOINING:
            raise GroupError("rebalance_in_progress")
        if group.state is State.STABLE:
            return member.assignment
        if member_id == group.leader:
            self._count(sum(len(assignments.get(one, b"")) for one in group.members))
        elif assignments:
            # Only the leader assigns; a request that waits must not hold memory.
            raise GroupError("invalid_request")
        syncing: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        member.syncing = syncing
        if member_id == group.leader:
            group.state = State.STABLE
            for one in group.members.values():
                one.assignment = assignments.get(one.id, b"")
                if one.syncing is not None and not one.syncing.done():
                    one.syncing.set_result(one.assignment)
        return await syncing

    def heartbeat(
        self, name: str, generation: int, member_id: str, *, instance: str | None
    ) -> None:
        """Keep a member's session alive. After an error the member joins again."""
        group, _ = self._current_member(name, generation, member_id, instance)
        if group.state is State.JOINING:
            raise GroupError("rebalance_in_progress")

    def leave(self, name: str, member_id: str, *, instance: str | None = None) -> None:
        """Remove a member at its own request; a static member also by its instance."""
        group = self._groups.get(name)
        if group is None:
            raise GroupError("unknown_member_id")
        if instance is not None and not member_id:
            holder = group.static_member(instance)
            if holder is None:
                raise GroupError("unknown_member_id")
            member_id = holder.id
        if group.pending_ids.pop(member_id, None) is None:
            self._remove(group, group.member(member_id, instance))
        self._complete(group)

    def check_commit(
        self, name: str, generation: int, member_id: str, *, instance: str | None
    ) -> None:
        """An error unless this member of this generation may commit offsets.

        A generation below 0 is a client outside any group protocol (`assign`, or an admin tool). It
        may commit while the group has no members.
        """
        group = self._groups.get(name)
        if generation < 0 and (group is None or not group.members):
            return
        if group is None:
            raise GroupError("illegal_generation")
        self._current_member(name, generation, member_id, instance)
        if group.state is State.SYNCING:
            raise GroupError("rebalance_in_progress")

    def _current_member(
        self, name: str, generation: int, member_id: str, instance: str | None
    ) -> tuple[Group, Member]:
        """A member of the present generation, whose session this request keeps alive."""
        group = self._groups.get(name)
        if group is None:
            raise GroupError("unknown_member_id")
        member = group.member(member_id, instance)
        if generation != group.generation:
            raise GroupError("illegal_generation")
        member.last_seen = self._clock()
        return group, member

    def _remove(self, group: Group, member: Member) -> None:
        member.fail("unknown_member_id")
        del group.members[member.id]
        if group.state is not State.JOINING:
            self._rebalance(group)
        self._complete(group)

    def expire(self) -> None:
        """Remove members whose session has expired, and end rebalances whose deadline has passed.

        The broker calls it several times per second.
        """
        now = self._clock()
        for group in list(self._groups.values()):
            group.pending_ids = {
                member_id: deadline
                for member_id, deadline in group.pending_ids.items()
                if deadline > now
            }
            for member in list(group.members.values()):
                # A member whose JoinGroup waits is alive: its connection is open.
                if member.joining is None and now > member.last_seen + member.session_s:
                    self._remove(group, member)
            self._complete(group, now=now)
            if group.state is State.EMPTY and not group.pending_ids:
                del self._groups[group.id]
        self._resize(sum(group.memory_bytes for group in self._groups.values()))


def _keeps_generation(group: Group, known: Member, member: Member) -> bool:
    """Whether a JoinGroup of a known member is a retry that needs no new generation."""
    if not known.supports_same(member):
        return False
    if group.state is State.STABLE:
        return member.id != group.leader
    return group.state is State.SYNCING
