"""Consumer groups: who reads what. Membership is in memory, committed offsets are in a table.

A group gathers members, has one of them divide the partitions, and hands out the shares; whenever
somebody comes or goes it starts over, with a new generation. Members that do not answer for their
session time are taken out. After a restart of the broker groups are empty: members hear that they
are unknown, join again, and go on from their committed offsets.
"""

from __future__ import annotations

import asyncio
import enum
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEAST_SESSION_S, _MOST_SESSION_S = 1.0, 1800.0


class State(enum.Enum):
    """Where a group stands, in Kafka's words."""

    EMPTY = "Empty"
    JOINING = "PreparingRebalance"
    SYNCING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupError(Exception):
    """Kafka's name for what is wrong."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One consumer."""

    id: str
    instance: str | None
    client: str
    host: str
    session_s: float
    rebalance_s: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    seen: float = 0.0
    assignment: bytes = b""
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[bytes] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What a member learns when everybody is there."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member: str
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """Id, instance and metadata of all; for the leader alone."""
    settled: bool = False
    """The shares are what they were: the leader need not divide the partitions."""


@dataclass(slots=True, kw_only=True)
class Group:
    """A group and its members."""

    id: str
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    """Ids that were handed out and are waited for, until when."""
    due: float = 0.0
    """When those who have not joined again are left behind."""

    def member(self, found: str, instance: str | None = None) -> Member:
        """A member by its id, or an error."""
        if instance is not None:
            holder = self.instance(instance)
            if holder is not None and holder.id != found:
                raise GroupError("fenced_instance_id")
        if found not in self.members:
            raise GroupError("unknown_member_id")
        return self.members[found]

    def instance(self, instance: str) -> Member | None:
        """The member that has a static name."""
        return next((m for m in self.members.values() if m.instance == instance), None)


class Coordinator:
    """All groups of this broker."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def find(self, name: str) -> Group | None:
        """A group that has, or had, members."""
        return self._groups.get(name)

    def all(self) -> Iterator[Group]:
        """Every group that has, or had, members."""
        yield from self._groups.values()

    def forget(self, name: str) -> None:
        """A group without members may go."""
        group = self._groups.get(name)
        if group is not None and group.members:
            raise GroupError("non_empty_group")
        self._groups.pop(name, None)

    async def join(self, name: str, member: Member, *, known_ids: bool, may_rest: bool) -> Joined:
        """Wait until all members are there. `known_ids`: a new member is given an id first.
        `may_rest`: a leader understands that it has nothing to divide.
        """
        if not name:
            raise GroupError("invalid_group_id")
        if not _LEAST_SESSION_S <= member.session_s <= _MOST_SESSION_S:
            raise GroupError("invalid_session_timeout")
        if member.id and name not in self._groups:
            raise GroupError("unknown_member_id")
        group = self._groups.setdefault(name, Group(id=name))
        if not member.protocols or not _agree(group, member):
            raise GroupError("inconsistent_group_protocol")
        holder = group.instance(member.instance) if member.instance and not member.id else None
        old = self._identify(group, member, known_ids=known_ids)
        if holder is not None and group.state is State.STABLE:
            group.members[member.id] = member
            if _elected(group) == group.protocol:
                return _resumed(group, member, holder, may_rest=may_rest)
        unchanged = old is not None and (old.protocols, old.protocol_type) == (
            member.protocols, member.protocol_type,
        )  # fmt: skip
        if (
            unchanged
            and group.state in {State.SYNCING, State.STABLE}
            and (group.state is State.SYNCING or member.id != group.leader)
        ):
            assert old is not None
            old.seen = time.monotonic()
            return _joined(group, old)
        if old is not None:
            member.seen, member.assignment = old.seen, old.assignment
            _cancel(old, "rebalance_in_progress")
        group.members[member.id] = member
        joining: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        member.joining = joining
        if group.state is not State.JOINING:
            self._rebalance(group, first=group.state is State.EMPTY)
        self._complete(group)
        return await joining

    def _identify(self, group: Group, member: Member, *, known_ids: bool) -> Member | None:
        """Give a new member its id; the old self of one that is known."""
        if member.id:
            if group.pending.pop(member.id, None) is None:
                group.member(member.id, member.instance)
            return group.members.get(member.id)
        fresh = f"{member.instance or member.client or 'member'}-{uuid.uuid4()}"
        if member.instance is not None:
            holder = group.instance(member.instance)
            member.id = fresh
            if holder is not None:
                _cancel(holder, "fenced_instance_id")
                del group.members[holder.id]
                if group.leader == holder.id:
                    group.leader = fresh
            return None
        if known_ids:
            group.pending[fresh] = time.monotonic() + member.session_s
            raise MemberIdError(fresh)
        member.id = fresh
        return None

    def _rebalance(self, group: Group, *, first: bool = False) -> None:
        group.state = State.JOINING
        longest = max((member.rebalance_s for member in group.members.values()), default=0.0)
        group.due = time.monotonic() + (0.0 if first else longest)
        for member in group.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_exception(GroupError("rebalance_in_progress"))
            member.syncing = None

    def _complete(self, group: Group, *, now: float | None = None) -> None:
        """Start a generation if all have joined, or those who have not are late."""
        waiting = [m for m in group.members.values() if m.joining is None]
        late = now is not None and now >= group.due
        if group.state is not State.JOINING or ((waiting or group.pending) and not late):
            return
        for member in waiting:
            del group.members[member.id]
        group.pending.clear()
        group.generation += 1
        if not group.members:
            group.state, group.leader, group.protocol = State.EMPTY, "", ""
            return
        if group.leader not in group.members:
            group.leader = next(iter(group.members))
        group.protocol_type = group.members[group.leader].protocol_type
        group.protocol = _elected(group)
        group.state = State.SYNCING
        for member in group.members.values():
            joining, member.joining = member.joining, None
            member.seen = time.monotonic()
            if joining is not None and not joining.done():
                joining.set_result(_joined(group, member))

    async def sync(
        self, name: str, generation: int, found: str, assignments: dict[str, bytes],
        *, instance: str | None, protocol_type: str | None, protocol: str | None,
    ) -> bytes:  # fmt: skip
        """A member's share, once the leader has told them all."""
        group, member = self._checked(name, generation, found, instance)
        agreed = (group.protocol_type, group.protocol)
        if (protocol_type or agreed[0], protocol or agreed[1]) != agreed:
            raise GroupError("inconsistent_group_protocol")
        if group.state is State.JOINING:
            raise GroupError("rebalance_in_progress")
        if group.state is State.STABLE:
            return member.assignment
        syncing: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        member.syncing = syncing
        if found == group.leader:
            group.state = State.STABLE
            for each in group.members.values():
                each.assignment = assignments.get(each.id, b"")
                if each.syncing is not None and not each.syncing.done():
                    each.syncing.set_result(each.assignment)
        return await syncing

    def heartbeat(self, name: str, generation: int, found: str, *, instance: str | None) -> None:
        """A member lives."""
        group, _ = self._checked(name, generation, found, instance)
        if group.state is State.JOINING:
            raise GroupError("rebalance_in_progress")

    def leave(self, name: str, found: str, *, instance: str | None = None) -> None:
        """A member goes."""
        group = self._groups.get(name)
        if group is None:
            raise GroupError("unknown_member_id")
        if instance is not None and not found:
            holder = group.instance(instance)
            if holder is None:
                raise GroupError("unknown_member_id")
            found = holder.id
        if group.pending.pop(found, None) is None:
            self._remove(group, group.member(found, instance))
        self._complete(group)

    def may_commit(self, name: str, generation: int, found: str, *, instance: str | None) -> None:
        """An error unless this member of this generation may commit offsets."""
        group = self._groups.get(name)
        if generation < 0 and (group is None or not group.members):
            return
        if group is None:
            raise GroupError("illegal_generation")
        _, member = self._checked(name, generation, found, instance)
        if group.state is State.SYNCING:
            raise GroupError("rebalance_in_progress")
        member.seen = time.monotonic()

    def _checked(
        self, name: str, generation: int, found: str, instance: str | None
    ) -> tuple[Group, Member]:
        group = self._groups.get(name)
        if group is None:
            raise GroupError("unknown_member_id")
        member = group.member(found, instance)
        if generation != group.generation:
            raise GroupError("illegal_generation")
        member.seen = time.monotonic()
        return group, member

    def _remove(self, group: Group, member: Member) -> None:
        _cancel(member, "unknown_member_id")
        del group.members[member.id]
        if group.state is not State.JOINING:
            self._rebalance(group)
        self._complete(group)

    def expire(self) -> None:
        """Take out who is silent, and go on without who is late. Called a few times a second."""
        now = time.monotonic()
        for group in list(self._groups.values()):
            group.pending = {name: until for name, until in group.pending.items() if until > now}
            for member in list(group.members.values()):
                if member.joining is None and now > member.seen + member.session_s:
                    self._remove(group, member)
            self._complete(group, now=now)
            if group.state is State.EMPTY and not group.pending:
                del self._groups[group.id]


class MemberIdError(GroupError):
    """A new member is to come again with this id."""

    def __init__(self, member: str) -> None:
        super().__init__("member_id_required")
        self.member = member


def _cancel(member: Member, error: str) -> None:
    for waiting in (member.joining, member.syncing):
        if waiting is not None and not waiting.done():
            waiting.set_exception(GroupError(error))
    member.joining = member.syncing = None


def _agree(group: Group, member: Member) -> bool:
    """Whether a member speaks a protocol that all others speak."""
    others = [each for each in group.members.values() if each.id != member.id]
    names = {name for name, _ in member.protocols}
    for each in others:
        if each.protocol_type != member.protocol_type:
            return False
        names &= {name for name, _ in each.protocols}
    return bool(names)


def _elected(group: Group) -> str:
    """Of the protocols that all speak, the one most members like best."""
    common = set.intersection(*({n for n, _ in m.protocols} for m in group.members.values()))
    votes = [next(n for n, _ in m.protocols if n in common) for m in group.members.values()]
    return max(dict.fromkeys(votes), key=votes.count)


def _resumed(group: Group, member: Member, holder: Member, *, may_rest: bool) -> Joined:
    """A static member comes again: it has the share of its old self, and nobody else notices."""
    member.seen, member.assignment = time.monotonic(), holder.assignment
    joined = _joined(group, member)
    if member.id != group.leader:
        return joined
    if may_rest:
        return replace(joined, settled=True)
    # It would divide the partitions, and nobody would ask for a share: it is not told to lead.
    return replace(joined, leader=holder.id, members=())


def _joined(group: Group, member: Member) -> Joined:
    members = tuple(
        (each.id, each.instance, dict(each.protocols).get(group.protocol, b""))
        for each in group.members.values()
    )
    return Joined(
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader,
        member=member.id,
        members=members if member.id == group.leader else (),
    )
