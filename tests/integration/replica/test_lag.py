"""Followers that are away, late or slow: what the log keeps for them, and what they keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.log import lease, retention
from tailrace.log.format.segment import list_segments
from tailrace.position import ORIGIN
from tailrace.replica import outgoing
from tailrace.replica.sender import pin_of
from tailrace.testing.proxy import TcpProxy
from tests.integration.replica.cluster import Leading, Source, arrived, equal
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.log.format.segment import SegmentName
    from tests.integration.replica.cluster import Copy
    from tests.integration.replica.conftest import Copies, Leads


def trim(source: Source) -> list[SegmentName]:
    """Delete what retention may delete. Returns what is left."""
    limits = retention.Limits(keep_hours=0, keep_bytes=0)
    retention.delete(source.store, retention.expired(source.store, limits, now_micros=1 << 60))
    return list_segments(source.store)


def test_retention_waits_for_a_follower(source: Source, copy: Copies, lead: Leads) -> None:
    """GIVEN a follower that is away THEN the segments that it lacks are kept, up to a limit."""
    follower = copy()
    leader = lead(follower.address)
    source.append(30)
    arrived(source, follower)
    pin = pin_of(follower.address)
    wait_for(lambda: pin in retention.pins(source.store))
    follower.end()
    source.append(60)
    leader.end()
    kept = trim(source)
    again = copy(port=follower.port)
    second = lead(follower.address)
    wait_for(lambda: equal(source, again))
    assert second.leader.figures().followers[0].resets == 0
    # The follower deletes what the leader has deleted.
    source.append(1)
    wait_for(lambda: list_segments(again.store)[0] == kept[0])
    arrived(source, again)


@pytest.mark.parametrize("limit", ["max_lag_bytes", "max_lag_hours"])
def test_a_follower_that_lags_too_far_starts_over(
    source: Source, copy: Copies, lead: Leads, limit: str
) -> None:
    """GIVEN a follower that is away for longer than the limit, in bytes or in the time between two
    commits THEN the log is no longer kept for it."""
    follower = copy()
    leader = lead(follower.address, **{limit: 1000 if limit == "max_lag_bytes" else 1e-9})
    source.append(30)
    arrived(source, follower)
    follower.end()
    source.append(60)
    pin = pin_of(follower.address)
    wait_for(lambda: pin not in retention.pins(source.store))
    before = list_segments(source.store)
    assert trim(source) != before
    again = copy(port=follower.port)
    arrived(source, again)
    assert leader.leader.figures().followers[0].resets == 1
    assert again.follower.counts.figures.resets == 1


def test_a_machine_that_follows_again_deletes_with_its_leader(
    source: Source, copy: Copies, lead: Leads
) -> None:
    """GIVEN a copy with pins of the time in which its machine led WHEN it follows again THEN only
    the pin of a reader of its own is left, and it deletes what the leader deletes."""
    follower = copy()
    leader = lead(follower.address)
    source.append(60)
    arrived(source, follower)
    leader.end()
    follower.end()
    store = follower.store
    lease.lead(store)
    for name in ("orders", "backfill.orders", "follower.db3-7432"):
        retention.pin(store, name, ORIGIN, now=0)
    retention.pin(store, "mine", source.mark().position, now=0)
    again = copy(port=follower.port, pipelines=("orders",))
    lead(follower.address)
    source.append(1)
    arrived(source, again)
    assert set(retention.pins(store)) == {"mine"}
    before = list_segments(store)[0]
    wait_for(lambda: trim(source)[0] > before)

    def deletes() -> bool:
        source.append(1)
        return list_segments(store)[0] > before

    wait_for(deletes)
    again.end()
    # While it follows, pins of these names are of readers here.
    retention.pin(store, "orders", ORIGIN, now=0)
    copy(port=follower.port, pipelines=("orders",))
    source.append(1)
    arrived(source, follower)
    assert "orders" in retention.pins(store)


@pytest.mark.parametrize("chunk_bytes", [5_000, 1 << 20])
def test_a_slow_line_is_no_silence(
    copy: Copies,
    tmp_path: Path,
    ending: list[Copy | Leading],
    monkeypatch: pytest.MonkeyPatch,
    chunk_bytes: int,
) -> None:
    """GIVEN a line on which a heartbeat waits behind data for longer than `timeout_s`, or a single
    frame takes longer THEN both sides hear each other all the same, and one connection is
    enough."""
    monkeypatch.setattr(outgoing, "CHUNK_BYTES", chunk_bytes)
    source = Source(tmp_path / "leader", segment_bytes=1 << 20)
    source.append(400)
    follower = copy(timeout_s=1.5)
    proxy = TcpProxy("127.0.0.1", follower.port)
    proxy.throttle(source.mark().offset / 5)
    leader = Leading(source.store, f"127.0.0.1:{proxy.port}", timeout_s=1.5)
    ending.append(leader)
    arrived(source, follower)
    assert leader.leader.figures().followers[0].connections == 1
    proxy.close()
    source.close()
