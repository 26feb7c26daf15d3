"""Version 1: a follower that knows Chronik's design and nothing of Tailrace."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from tailrace.log import retention
from tailrace.log.format.layout import ENTRY_HEADER_BYTES, decode_entry, decode_frame
from tailrace.log.format.segment import list_segments, walk
from tailrace.log.segments import Segments
from tailrace.replica.sender import pin_of
from tests.integration.replica.cluster import Copy, Leading, Source, arrived
from tests.integration.replica.seed_follower import SeedFollower
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace.log.format.entry import Entry
    from tailrace.log.format.segment import SegmentName

    Leads = Callable[..., Leading]

_EPOCH_MS = 946_684_800_000


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    made = Source(tmp_path / "leader")
    yield made
    made.close()


@pytest.fixture
def lead(source: Source) -> Iterator[Callable[..., Leading]]:
    running: list[Leading] = []

    def make(*followers: SeedFollower | Copy, **settings: object) -> Leading:
        made = Leading(source.store, *(each.address for each in followers), **settings)
        running.append(made)
        return made

    yield make
    for each in running:
        each.end()


@pytest.fixture
def follower() -> Iterator[SeedFollower]:
    made = SeedFollower()
    yield made
    made.close()
    assert made.errors == []


def entry_of(data: bytes) -> Entry:
    header = data[:ENTRY_HEADER_BYTES]
    return decode_entry(decode_frame(header), header, data[ENTRY_HEADER_BYTES:])


def stored(source: Source) -> list[bytes]:
    """The entries of a log as they are on disk."""
    found = []
    for name in list_segments(source.store):
        start = 20 + struct.unpack_from("<I", source.store.read(name.file, 12, 4))[0]
        for placed in walk(source.store, name, start):
            found.append(source.store.read(name.file, placed.start, placed.end - placed.start))
    return found


def test_every_entry_arrives_once_and_in_order(
    source: Source, lead: Leads, follower: SeedFollower
) -> None:
    """GIVEN a follower of version 1 THEN version 2 is offered first, and every entry arrives."""
    source.append(30)
    leader = lead(follower)
    wait_for(lambda: len(follower.records) == len(stored(source)))
    source.append(10)
    wait_for(lambda: len(follower.records) == len(stored(source)))
    assert [each.data for each in follower.records] == stored(source)
    assert [version for version, _, _ in follower.handshakes] == [2, 1]
    [figures] = leader.leader.figures().followers
    assert (figures.version, figures.state) == (1, "streaming")
    identity = source.log.appender.identity
    for record in follower.records:
        entry = entry_of(record.data)
        assert record.topic == f"{identity.database}.{identity.slot}"
        assert record.partition == 0
        assert record.base_offset == entry.first.lsn
        assert record.record_count == entry.changes
        assert record.timestamp_ms == _EPOCH_MS + entry.last_time // 1000


def test_a_follower_continues_at_its_position(
    source: Source, lead: Leads, follower: SeedFollower
) -> None:
    """GIVEN a follower that has the log up to an LSN THEN it gets what follows, and nothing
    twice but schemas."""
    source.append(40)
    all_of_it = stored(source)
    ends = [each for each in map(entry_of, all_of_it) if each.changes]
    held = ends[len(ends) // 2].end_lsn
    follower.position = held
    lead(follower)
    expected = [
        data for data in all_of_it if entry_of(data).end_lsn > held and entry_of(data).changes
    ]
    wait_for(lambda: [r.data for r in follower.records if r.record_count] == expected)
    assert all(entry_of(each.data).end_lsn >= held for each in follower.records)


def test_a_follower_ahead_of_its_leader_is_left_alone(
    source: Source, lead: Leads, follower: SeedFollower
) -> None:
    source.append(5)
    follower.position = source.mark().end_lsn + 100
    leader = lead(follower)
    wait_for(lambda: leader.leader.figures().followers[0].state == "DIVERGED")
    assert follower.records == []


def test_heartbeats(source: Source, lead: Leads, follower: SeedFollower) -> None:
    leader = lead(follower, heartbeat_s=0.05, timeout_s=0.5)
    wait_for(lambda: len(follower.heartbeats) > 3)
    assert leader.leader.figures().followers[0].connected
    follower.deaf = True
    wait_for(lambda: leader.leader.figures().followers[0].state == "REPLICA_UNREACHABLE")
    follower.deaf = False
    wait_for(lambda: leader.leader.figures().followers[0].state == "streaming")


def test_such_a_follower_is_no_part_of_a_quorum(
    source: Source, lead: Leads, follower: SeedFollower
) -> None:
    source.append(5)
    leader = lead(follower, mode="sync")
    wait_for(lambda: follower.records)
    figures = leader.leader.figures()
    assert (figures.quorum_lsn, figures.in_quorum) == (None, False)
    # 1: synchronous
    assert follower.handshakes[-1][2] == 1


def test_a_shared_key_is_not_bypassed(source: Source, lead: Leads, follower: SeedFollower) -> None:
    """GIVEN a key, which version 1 cannot prove THEN version 1 is never offered."""
    source.append(5)
    leader = lead(follower, key="a secret of enough letters")
    wait_for(lambda: len(follower.handshakes) > 3)
    assert {version for version, _, _ in follower.handshakes} == {2}
    assert follower.records == []
    [figures] = leader.leader.figures().followers
    assert figures.state == "REPLICA_REFUSED"


def trim(source: Source) -> list[SegmentName]:
    """Delete what retention may delete."""
    limits = retention.Limits(keep_hours=0, keep_bytes=0)
    gone = retention.expired(source.store, limits, now_micros=1 << 60)
    retention.delete(source.store, gone)
    return gone


def test_what_was_removed_is_never_skipped(
    source: Source, lead: Leads, follower: SeedFollower
) -> None:
    """GIVEN a follower that lacks a part of the log that is no longer there THEN it gets nothing,
    and its state says why."""
    source.append(60)
    follower.position = entry_of(stored(source)[2]).end_lsn
    assert trim(source)
    leader = lead(follower)
    wait_for(lambda: leader.leader.figures().followers[0].state == "POSITION_LOST")
    assert "removed" not in leader.leader.figures().followers[0].reason
    assert follower.records == []
    follower.position = 0
    wait_for(lambda: len(follower.records) == len(stored(source)))


def test_the_log_is_kept_for_a_follower_that_is_away(
    source: Source, lead: Leads, follower: SeedFollower
) -> None:
    """GIVEN a follower that has answered heartbeats WHEN it is away and retention runs THEN it gets
    all that follows what it had."""
    source.append(60)
    leader = lead(follower, heartbeat_s=0.05, timeout_s=3.0)
    wait_for(lambda: len(follower.records) == len(stored(source)))
    pin = pin_of(follower.address)
    end = source.mark().position
    oldest = list_segments(source.store)[-1]
    base = Segments(source.store).header(oldest).base
    wait_for(lambda: retention.own_pin(source.store, pin) == base, timeout_s=60)
    held = follower.records[-1]
    leader.end()
    follower.drop()
    source.append(60)
    assert trim(source), "what the follower has may go"
    follower.position = entry_of(held.data).end_lsn
    assert base <= end
    before = len(follower.records)
    lead(follower)
    expected = [data for data in stored(source) if entry_of(data).end_lsn > follower.position]
    wait_for(lambda: len(follower.records) >= before + len(expected))
    got = [each.data for each in follower.records[before:] if each.record_count]
    assert got == [data for data in expected if entry_of(data).changes]


def test_several_followers_of_both_versions(
    source: Source, lead: Leads, follower: SeedFollower, tmp_path: Path
) -> None:
    """GIVEN two followers of version 1 and one of version 2 THEN each gets all of the log, and only
    the one of version 2 counts for the quorum."""
    other, copy = SeedFollower(), Copy(tmp_path / "copy")
    source.append(20)
    leader = lead(follower, other, copy, mode="sync")
    source.append(20)
    for each in (follower, other):
        wait_for(lambda each=each: len(each.records) == len(stored(source)))  # type: ignore[misc]
        assert [record.data for record in each.records] == stored(source)
    arrived(source, copy)
    wait_for(lambda: leader.leader.figures().quorum_lsn == source.mark().end_lsn)
    assert [each.version for each in leader.leader.figures().followers] == [1, 1, 2]
    copy.end()
    other.close()
    assert other.errors == []
    wait_for(lambda: not leader.leader.figures().in_quorum)
