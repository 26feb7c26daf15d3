"""Scrub: a follower reads its sealed segments, and fetches those that it cannot read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import CorruptError
from tailrace.log import retention
from tailrace.log.format.layout import SEGMENT_HEADER_BYTES
from tailrace.log.format.segment import list_segments, read_header
from tailrace.log.verify import verify
from tests.fix_log import all_changes
from tests.integration.replica.cluster import arrived
from tests.integration.replica.damage import (
    cut,
    cut_entry,
    empty,
    extend,
    file_of,
    flip,
    index_of,
    put,
)
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.log.store import LocalStore
    from tailrace.observe.replica import FollowingFigures
    from tests.integration.replica.cluster import Copy, Source
    from tests.integration.replica.conftest import Copies, Leads

    Damages = Callable[[Path], None]

QUICKLY = {"scrub_hours": 1e-7}
"""Again and again, without a pause."""
FIRST_ENTRY_AT = 450
"""A byte of it: the header has less than 400."""


DAMAGES: dict[str, Damages] = {
    "a byte": flip,
    "the header": lambda path: flip(path, SEGMENT_HEADER_BYTES + 5),
    "the first entry": lambda path: flip(path, FIRST_ENTRY_AT),
    "its end": lambda path: flip(path, -1),
    "cut": cut,
    "cut between entries": cut_entry,
    "longer": extend,
    "empty": empty,
    "the index": index_of,
}


def repairs(copy: Copy) -> int:
    return copy.follower.counts.figures.repairs


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_segment_is_repaired(
    source: Source, copy: Copies, lead: Leads, damage: str
) -> None:
    """GIVEN a sealed segment of a follower that cannot be read WHEN it starts THEN it fetches that
    segment again, reports the repair, and has the leader's bytes."""
    source.append(60)
    follower = copy()
    lead(follower.address)
    arrived(source, follower)
    follower.end()
    DAMAGES[damage](file_of(follower.store, 2))
    again = copy(port=follower.port)
    wait_for(lambda: repairs(again) == 1)
    source.append(5)
    arrived(source, again)
    indexes = [
        [(store.folder / name.index).read_bytes() for name in list_segments(store)[:-1]]
        for store in (source.store, again.store)
    ]
    assert indexes[0] == indexes[1]
    assert [(each.state, each.reason) for each in (again.follower.counts.figures,)] == [
        ("following", "")
    ]
    assert repairs(again) == 1
    assert not list(again.store.folder.glob("*.tmp"))


def test_damage_is_found_while_the_follower_runs(source: Source, copy: Copies, lead: Leads) -> None:
    """GIVEN a follower that reads its copy again and again WHEN segments rot THEN each is repaired,
    and meanwhile readers get an error or the truth."""
    follower = copy(**QUICKLY)
    lead(follower.address)
    source.append(60)
    arrived(source, follower)
    for count, number in enumerate((0, 3, 1), start=1):
        flip(file_of(follower.store, number))
        with pytest.raises(CorruptError):
            all_changes(follower.store)
        wait_for(lambda at=count: repairs(follower) == at)  # type: ignore[misc]
        source.append(10)
        arrived(source, follower)
    assert follower.follower.counts.figures.scrubs > 1


def test_two_damaged_segments_of_the_beginning(source: Source, copy: Copies, lead: Leads) -> None:
    source.append(60)
    follower = copy()
    lead(follower.address, compression="zstd")
    arrived(source, follower)
    follower.end()
    for number in (0, 1):
        flip(file_of(follower.store, number), SEGMENT_HEADER_BYTES + 5)
    again = copy(port=follower.port)
    wait_for(lambda: repairs(again) == 2)
    arrived(source, again)


def test_the_leaders_own_segment_is_damaged(source: Source, copy: Copies, lead: Leads) -> None:
    """GIVEN a segment that neither machine can read THEN both say CORRUPT and which segment, the
    follower keeps what it has and goes on; WHEN the leader's is sound again THEN it is repaired."""
    follower = copy(**QUICKLY)
    leader = lead(follower.address)
    source.append(60)
    arrived(source, follower)
    path, own = file_of(follower.store, 2), file_of(source.store, 2)
    sound = own.read_bytes()
    flip(own, 2 * len(sound) // 3)
    flip(path)
    damaged = path.read_bytes()

    def figures() -> FollowingFigures:
        return follower.follower.counts.figures

    wait_for(lambda: "the leader refuses" in figures().reason)
    assert figures().state == CorruptError.code
    assert path.name in figures().reason
    seen = wait_for(
        lambda: [f for f in leader.leader.figures().followers if f.state == CorruptError.code]
    )
    assert own.name in seen[0].reason
    assert seen[0].connected
    source.append(20)
    wait_for(lambda: figures().end_lsn == source.mark().end_lsn)
    holds(lambda: figures().state == CorruptError.code and figures().connected, 0.5)
    assert path.read_bytes() == damaged
    put(own, sound)
    wait_for(lambda: repairs(follower) == 1)
    arrived(source, follower)
    wait_for(lambda: figures().state == "following")
    wait_for(lambda: leader.leader.figures().followers[0].state == "streaming")


def test_another_segment_of_the_leader_is_not_taken(
    source: Source, copy: Copies, lead: Leads
) -> None:
    """GIVEN a leader whose segment can be read and is another one THEN the follower keeps its
    own."""
    follower = copy(**QUICKLY)
    lead(follower.address)
    source.append(60)
    arrived(source, follower)
    path, own = file_of(follower.store, 2), file_of(source.store, 2)
    damaged = bytearray(path.read_bytes())
    # A header that differs and is valid: what can be read of both differs.
    put(own, _created_later(source.store, 2))
    damaged[len(damaged) // 2] ^= 1
    put(path, damaged)
    wait_for(lambda: "differs" in follower.follower.counts.figures.reason)
    assert follower.state == CorruptError.code
    assert path.read_bytes() == bytes(damaged)
    assert repairs(follower) == 0


def _created_later(store: LocalStore, number: int) -> bytes:
    name = list_segments(store)[number]
    header, size = read_header(store, name)
    year = str(int(header.created_at[0]) + 1)
    changed = replace(header, created_at=year + header.created_at[1:]).encode()
    assert len(changed) == size
    return changed + (store.folder / name.file).read_bytes()[size:]


def test_a_segment_that_the_leader_has_deleted(source: Source, copy: Copies, lead: Leads) -> None:
    """GIVEN a damaged segment that the leader has no more THEN the follower says so, and deletes it
    with the others as soon as no reader needs it."""
    follower = copy(**QUICKLY)
    lead(follower.address)
    source.append(60)
    arrived(source, follower)
    retention.pin(follower.store, "reader", all_changes(follower.store)[0].position, now=0)
    names = list_segments(source.store)
    retention.delete(source.store, names[:4])
    path = file_of(follower.store, 2)
    flip(path, SEGMENT_HEADER_BYTES + 5)
    wait_for(lambda: "not a sealed segment" in follower.follower.counts.figures.reason)
    retention.unpin(follower.store, "reader")
    retention.delete(source.store, names[4:5])

    def deleted() -> bool:
        # The leader says once a second where its log begins.
        source.append(1)
        return not path.exists()

    wait_for(deleted)
    wait_for(lambda: follower.state == "following")
    arrived(source, follower)


def test_a_damaged_header_does_not_keep_a_follower_from_deleting(
    source: Source, copy: Copies, lead: Leads
) -> None:
    """GIVEN a header that cannot be read where the leader's log begins now THEN the follower goes
    on, and deletes what it can."""
    source.append(60)
    follower = copy(scrub_hours=0)
    lead(follower.address)
    arrived(source, follower)
    names = list_segments(source.store)
    flip(file_of(follower.store, 4), SEGMENT_HEADER_BYTES + 5)
    retention.delete(source.store, names[:4])

    def deleted() -> bool:
        source.append(1)
        return list_segments(follower.store)[0] == names[3]

    wait_for(deleted)
    wait_for(lambda: follower.follower.counts.figures.end_lsn == source.mark().end_lsn)
    assert follower.state == "following"


def test_never(source: Source, copy: Copies, lead: Leads) -> None:
    """GIVEN `scrub_hours: 0` THEN nothing is read."""
    source.append(60)
    follower = copy(scrub_hours=0)
    lead(follower.address)
    arrived(source, follower)
    flip(file_of(follower.store, 2))
    holds(lambda: follower.state == "following", 0.5)
    assert follower.follower.counts.figures.scrubs == 0
    assert not verify(follower.store).ok


def test_damage_in_the_last_segment_does_not_stop_a_follower(
    source: Source, copy: Copies, lead: Leads
) -> None:
    """GIVEN a byte that rots before the mark of a running follower WHEN its leader connects again
    THEN the follower drops that segment and fetches it again, and nothing else."""
    follower = copy()
    leader = lead(follower.address)
    source.append(60)
    arrived(source, follower)
    leader.end()
    flip(file_of(follower.store, -1))
    kept = [name.file for name in list_segments(follower.store)[:-1]]
    # Recovery writes the one that is the last now again.
    before = [(follower.store.folder / file).stat().st_ino for file in kept[:-1]]
    lead(follower.address)
    wait_for(lambda: repairs(follower) == 1)
    arrived(source, follower)
    assert before == [(follower.store.folder / file).stat().st_ino for file in kept[:-1]]


def test_damage_at_the_end_gives_up_nothing_before_it(
    source: Source, copy: Copies, lead: Leads
) -> None:
    """GIVEN a damaged segment in the middle and one at the end WHEN the follower starts THEN it
    cuts the last one only, at the damage: readers need the rest, and it was acknowledged."""
    follower = copy()
    leader = lead(follower.address)
    source.append(60)
    arrived(source, follower)
    leader.end()
    follower.end()
    for number in (1, -1):
        flip(file_of(follower.store, number))
    names = list_segments(follower.store)
    damaged = file_of(follower.store, -1).stat().st_size
    again = copy(port=follower.port)
    wait_for(lambda: again.state == "waiting")
    assert list_segments(again.store) == names
    assert file_of(again.store, -1).stat().st_size < damaged
    lead(again.address)
    wait_for(lambda: repairs(again) == 2)
    arrived(source, again)
