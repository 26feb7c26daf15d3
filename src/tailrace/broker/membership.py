"""One consumer group: its members, its state, and the protocol that its members agree on.

Data and pure functions only; `tailrace.broker.groups` changes them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class State(enum.Enum):
    """The state of a group, with Kafka's names.

    EMPTY ──join──▶ JOINING ──all joined──▶ SYNCING ──leader's SyncGroup──▶ STABLE
      ▲                ▲                                                        │
      └─ no members ───┴──── a member joins, leaves or expires ─────────────────┘
    """

    EMPTY = "Empty"
    JOINING = "PreparingRebalance"
    SYNCING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_OVERHEAD_BYTES = 1000
"""Memory of a group, a member or a pending id, beside its texts and metadata."""


class GroupError(Exception):
    """A request of a member that fails. The message is the name of Kafka's error code."""


class MemberIdRequiredError(GroupError):
    """A new member must join again with the id in `member_id`."""

    def __init__(self, member_id: str) -> None:
        super().__init__("member_id_required")
        self.member_id = member_id


@dataclass(slots=True, kw_only=True)
class Member:
    """One consumer of a group."""

    id: str
    instance: str | None
    """`group.instance.id`: a static member."""
    client: str
    host: str
    session_s: float
    rebalance_s: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata of the assignors that the member supports, the preferred one first."""
    last_seen: float = 0.0
    assignment: bytes = b""
    joining: asyncio.Future[JoinResult] | None = None
    """The response to a JoinGroup request that waits for the other members."""
    syncing: asyncio.Future[bytes] | None = None
    """The response to a SyncGroup request that waits for the leader."""
    metadata_bytes: int = field(init=False)
    """Size of all that the member has sent to join."""

    def __post_init__(self) -> None:
        texts = (self.id, self.instance or "", self.client, self.protocol_type)
        self.metadata_bytes = sum(map(len, texts)) + sum(
            len(name) + len(metadata) for name, metadata in self.protocols
        )

    @property
    def memory_bytes(self) -> int:
        """The memory that it uses."""
        return _OVERHEAD_BYTES + self.metadata_bytes + len(self.assignment)

    def fail(self, error: str) -> None:
        """Answer the requests of this member that wait with an error."""
        for waiting in (self.joining, self.syncing):
            if waiting is not None and not waiting.done():
                waiting.set_exception(GroupError(error))
        self.joining = self.syncing = None

    def supports_same(self, other: Member) -> bool:
        """Whether both support the same protocols with the same metadata."""
        return (self.protocols, self.protocol_type) == (other.protocols, other.protocol_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The response to a member that has joined a generation."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member: str
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """Id, instance and metadata of every member; for the leader only."""
    skip_assignment: bool = False
    """The assignments are unchanged: the leader does not compute them again."""


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
    pending_ids: dict[str, float] = field(default_factory=dict)
    """Ids of new members that have not joined with them yet, and their deadlines."""
    rebalance_deadline: float = 0.0
    """When members that have not joined again are removed."""

    @property
    def memory_bytes(self) -> int:
        """The memory that it uses, with its members."""
        return (
            _OVERHEAD_BYTES
            + len(self.id)
            + sum(_OVERHEAD_BYTES + len(pending) for pending in self.pending_ids)
            + sum(member.memory_bytes for member in self.members.values())
        )

    def member(self, member_id: str, instance: str | None = None) -> Member:
        """The member with this id. An error if it is unknown, or its instance was taken over."""
        if instance is not None:
            holder = self.static_member(instance)
            if holder is not None and holder.id != member_id:
                raise GroupError("fenced_instance_id")
        if member_id not in self.members:
            raise GroupError("unknown_member_id")
        return self.members[member_id]

    def static_member(self, instance: str | None) -> Member | None:
        """The member with this `group.instance.id`."""
        if instance is None:
            return None
        return next((m for m in self.members.values() if m.instance == instance), None)

    def supports(self, member: Member) -> bool:
        """Whether a protocol exists that this member and all others support."""
        names = {name for name, _ in member.protocols}
        for other in self.members.values():
            if other.id == member.id:
                continue
            if other.protocol_type != member.protocol_type:
                return False
            names &= {name for name, _ in other.protocols}
        return bool(names)

    def elect_protocol(self) -> str:
        """Of the protocols that all members support, the one that most members prefer.

        Each member votes for the first of its protocols that all support. With members that list
        (range, sticky), (sticky, range) and (sticky, range) the vote is sticky.
        """
        supported = ({name for name, _ in m.protocols} for m in self.members.values())
        common = set.intersection(*supported)
        votes = [next(n for n, _ in m.protocols if n in common) for m in self.members.values()]
        return max(dict.fromkeys(votes), key=votes.count)

    def join_result(self, member: Member) -> JoinResult:
        """The response to a member of the present generation."""
        members = tuple(
            (one.id, one.instance, dict(one.protocols).get(self.protocol, b""))
            for one in self.members.values()
        )
        return JoinResult(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            member=member.id,
            members=members if member.id == self.leader else (),
        )
