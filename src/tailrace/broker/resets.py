"""Move the committed offsets of a consumer group, as `kafka-consumer-groups --reset-offsets` does.

Only of a group without members: a member keeps its own position, and would commit it over the new
one. The check and the change are one transaction, which holds the lock of the group
(`tailrace.broker.tables.presence`): a member that joins later reads the new offsets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tailrace import audit
from tailrace.broker.tables.committed import COMMIT
from tailrace.broker.tables.inspection import check_installed, members, serving
from tailrace.broker.tables.pool import LOCK_TIMEOUT
from tailrace.broker.tables.presence import GROUP_LOCK
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from psycopg import Connection

Target = Literal["earliest", "latest"] | int
Offsets = dict[tuple[int, int], tuple[int | None, int]]
"""The old and the new offset of each partition: what a reset has shown."""
_SHOWN = 20
_MEMBERS_SHOWN = 3
_NO_EPOCH = -1
# A group's own partitions, or all of a topic that is named.
_PARTITIONS = """
SELECT t.id, t.name, p.partition_id, p.log_start, p.next_offset, o."offset"
FROM kafka.topics t JOIN kafka.partitions p ON p.topic_id = t.id
    LEFT JOIN kafka.consumer_offsets o ON o.group_id = %(group)s
        AND (o.topic_id, o.partition_id) = (p.topic_id, p.partition_id)
WHERE CASE WHEN %(topic)s = '' THEN o.group_id IS NOT NULL
    ELSE t.name = %(topic)s AND (p.partition_id = %(partition)s OR %(partition)s::int IS NULL) END
ORDER BY t.name, p.partition_id
"""
_HAS_OFFSETS = "SELECT EXISTS (SELECT FROM kafka.consumer_offsets WHERE group_id = %s)"


def parse_target(text: str) -> Target:
    """Where to: `earliest`, `latest` or an offset.

    >>> parse_target("earliest"), parse_target("17")
    ('earliest', 17)
    """
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    raise ValueError(f"must be earliest, latest or an offset, got {text!r}")


def parse_topic(text: str) -> tuple[str, int | None]:
    """A topic, or with `:` one of its partitions, as Kafka's own command has it.

    >>> parse_topic("orders"), parse_topic("orders:2")
    (('orders', None), ('orders', 2))
    """
    match = re.fullmatch(r"([a-zA-Z0-9._-]{0,249})(?::([0-9]{1,9}))?", text)
    if match is None or (match[2] and not match[1]):
        raise ValueError(f"must be a topic such as orders, or orders:2, got {text!r}")
    return match[1], int(match[2]) if match[2] else None


def parse_offsets(text: str) -> Offsets:
    """What `Reset.offsets` has written.

    >>> parse_offsets("12:0:40:100,12:1::7")
    {(12, 0): (40, 100), (12, 1): (None, 7)}
    """
    found: Offsets = {}
    for each in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d{1,10}):(\d{1,10}):(\d{1,18})?:(\d{1,18})", each, re.ASCII)
        if match is None:
            raise ValueError("must be the offsets that were shown")
        topic, partition, old, new = match.groups()
        found[int(topic), int(partition)] = (None if old is None else int(old), int(new))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which offsets to move, and where to."""

    group: str
    to: Target
    topic: str = ""
    """Empty: every partition that the group has committed an offset of."""
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The old and the new offset of a partition."""

    topic_id: int
    topic: str
    partition: int
    first: int
    end: int
    old: int | None
    """None: the group has committed none."""
    new: int

    @property
    def repeated(self) -> int:
        """Records that the group reads again."""
        return 0 if self.old is None else max(min(self.old, self.end) - self.new, 0)

    @property
    def skipped(self) -> int:
        """Records that the group does not read."""
        return 0 if self.old is None else max(self.new - max(self.old, self.first), 0)

    def line(self) -> str:
        """For an operator."""
        name = f"{self.topic}:{self.partition}"
        if self.old is None:
            return f"{name}: no committed offset, becomes {self.new}."
        if self.old == self.new:
            return f"{name}: remains {self.old}."
        moved = f"{name}: {self.old} becomes {self.new}"
        if self.repeated:
            return f"{moved}, {_records(self.repeated)} read again."
        if self.skipped:
            return f"{moved}, {_records(self.skipped)} skipped."
        return f"{moved}, there are no records between them."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """What an order does."""

    order: Order
    moves: tuple[Move, ...]

    @property
    def repeated(self) -> int:
        """Records that the group reads again, in all partitions."""
        return sum(move.repeated for move in self.moves)

    @property
    def skipped(self) -> int:
        """Records that the group does not read, in all partitions."""
        return sum(move.skipped for move in self.moves)

    def offsets(self) -> str:
        """The old and new offsets, so that what is confirmed is what was shown."""
        return ",".join(
            f"{each.topic_id}:{each.partition}:{'' if each.old is None else each.old}:{each.new}"
            for each in self.moves
        )

    def as_shown(self, shown: Offsets) -> Reset:
        """The same order with the new offsets that were shown. Raises ConfigError if the old ones,
        or the partitions, are others."""
        if {(each.topic_id, each.partition): each.old for each in self.moves} != {
            place: old for place, (old, _) in shown.items()
        }:
            raise ConfigError(
                f"the offsets of group {self.order.group!r} have changed since they were shown",
                hint="Look at the effect again.",
            )
        moves = (
            replace(
                each, new=_target(shown[each.topic_id, each.partition][1], each.first, each.end)
            )
            for each in self.moves
        )
        return replace(self, moves=tuple(moves))

    def lines(self) -> list[str]:
        """For an operator: the sum, then each partition."""
        more = len(self.moves) - _SHOWN
        return [
            f"Group {self.order.group}: {_records(self.repeated)} read again, "
            f"{_records(self.skipped)} skipped.",
            *(move.line() for move in self.moves[:_SHOWN]),
            *([f"And {more:,} more partitions."] if more > 0 else ()),
        ]

    @property
    def warning(self) -> str:
        """What cannot be undone without another reset; empty if nothing is."""
        skipped = "The group never reads skipped records, unless it is reset again."
        repeated = "Consumers of the group receive these records again."
        found = ((self.skipped, skipped), (self.repeated, repeated))
        return " ".join(text for count, text in found if count)

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "group": self.order.group,
            "repeated": self.repeated,
            "skipped": self.skipped,
            "partitions": [
                {"topic": each.topic, "partition": each.partition, "old": each.old,
                 "new": each.new, "repeated": each.repeated, "skipped": each.skipped}
                for each in self.moves
            ],
        }  # fmt: skip


def plan(connection: Connection[Any], order: Order) -> Reset:
    """What an order would do. Raises ConfigError if it is not possible."""
    check_installed(connection)
    _check_group(connection, order.group)
    values = {"group": order.group, "topic": order.topic, "partition": order.partition}
    rows = connection.execute(_PARTITIONS, values).fetchall()
    if not rows:
        if not order.topic:
            raise ConfigError(
                f"group {order.group!r} has committed no offsets", hint="Name a topic."
            )
        which = "" if order.partition is None else f" with a partition {order.partition}"
        raise ConfigError(f"there is no topic {order.topic!r}{which}")
    moves = tuple(
        Move(
            topic_id=topic_id, topic=topic, partition=partition, first=first, end=end, old=old,
            new=_target(order.to, first, end),
        )
        for topic_id, topic, partition, first, end, old in rows
    )  # fmt: skip
    return Reset(order=order, moves=moves)


def perform(
    connection: Connection[Any],
    order: Order,
    *,
    shown: Offsets | None = None,
    data: Path,
    user: str,
    reason: str = "",
) -> Reset:
    """Move the offsets, with an entry in the audit file. Raises ConfigError as `plan` does.

    `shown` is what an operator has confirmed: those offsets, or none. Records that were written
    since are not skipped.
    """
    check_installed(connection)
    with connection.transaction():
        connection.execute(LOCK_TIMEOUT)
        connection.execute(GROUP_LOCK, (order.group,))
        reset = plan(connection, order)
        reset = reset.as_shown(shown) if shown else reset
        rows = [(each.topic_id, each.partition, each.new, _NO_EPOCH, "") for each in reset.moves]
        columns = [list(column) for column in zip(*rows, strict=True)]
        connection.execute(COMMIT.encode(), (order.group, *columns))
        # Before the commit: a change without an entry must not be.
        audit.record(
            data, "broker.reset_offsets", user=user, group=order.group, to=str(order.to),
            topic=order.topic or "all", partition=order.partition,
            repeated=reset.repeated, skipped=reset.skipped, reason=reason,
        )  # fmt: skip
    return reset


def _check_group(connection: Connection[Any], name: str) -> None:
    """Raise ConfigError if the group is unknown or has members."""
    found = members(connection, name).get(name) if serving(connection) is not None else None
    if found is not None:
        clients = [f"{one.client} at {one.host}" for one in found.members[:_MEMBERS_SHOWN]]
        more = "" if len(found.members) <= _MEMBERS_SHOWN else ", …"
        count = len(found.members)
        raise ConfigError(
            f"group {name!r} has {count} member{'s' * (count != 1)} ({', '.join(clients)}{more}): "
            "offsets can only be reset while it has none",
            hint="Stop the consumers of the group, and wait until its state is Empty.",
        )
    row = connection.execute(_HAS_OFFSETS, (name,)).fetchone()
    if row is None or not row[0]:
        raise ConfigError(
            f"there is no group {name!r}", hint="List groups: tailrace broker groups list"
        )


def _target(to: Target, first: int, end: int) -> int:
    """An offset outside of the partition becomes its nearest end, as with Kafka's own command."""
    match to:
        case "earliest":
            return first
        case "latest":
            return end
        case _:
            return min(max(to, first), end)


def _records(count: int) -> str:
    return f"{count:,} record{' is' if count == 1 else 's are'}"
