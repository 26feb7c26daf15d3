"""What the page of the broker reads, without a database."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tailrace.console.actions import broker as actions
from tailrace.console.views import broker as views
from tailrace.observe.broker import (
    BrokerFigures,
    CommittedFigures,
    GroupFigures,
    MemberFigures,
    PartitionFigures,
    ServingFigures,
    StoreFigures,
    TopicFigures,
)

if TYPE_CHECKING:
    import pytest

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
SERVING = ServingFigures(address="127.0.0.1", pid=7, since=NOW)
STORES = (StoreFigures(name="kafka.messages", bytes=4096),)


def topic(name: str, *ends: int) -> TopicFigures:
    """A topic that keeps everything but its first record."""
    return TopicFigures(
        name=name, table="kafka.messages", copied=True, records=sum(ends) - len(ends),
        partitions=tuple(
            PartitionFigures(partition=number, first_offset=1, end_offset=end, records=end - 1)
            for number, end in enumerate(ends)
        ),
    )  # fmt: skip


def group(name: str, of: str, *committed: int, members: tuple[MemberFigures, ...] = ()) -> (
    GroupFigures
):  # fmt: skip
    """A group with offsets in partitions that end at 100."""
    return GroupFigures(
        name=name, state="Stable" if members else "Empty", generation=1, members=members,
        lag=sum(100 - each for each in committed),
        offsets=tuple(
            CommittedFigures(
                topic=of, partition=number, committed_offset=each, end_offset=100, lag=100 - each,
                committed_at=NOW,
            )
            for number, each in enumerate(committed)
        ),
    )  # fmt: skip


def figures(name: str = "billing") -> BrokerFigures:
    """Two topics, a group with a member and one without, whose names contain `name`."""
    member = MemberFigures(id=f"{name}-1", client=name, host="10.0.0.7")
    return BrokerFigures(
        serving=SERVING, stores=STORES, complete=True,
        topics=(topic("orders", 100, 100), topic("events", 100)),
        groups=(
            group(name, "orders", 40, 90),
            group(f"{name} live", "events", 100, members=(member,)),
        ),
    )  # fmt: skip


def show(monkeypatch: pytest.MonkeyPatch, found: BrokerFigures) -> None:
    """Have the page show these figures."""
    for module in (views, actions):
        monkeypatch.setattr(module, "session", lambda _system: nullcontext())
    monkeypatch.setattr(views, "inspect", lambda _connection: found)
