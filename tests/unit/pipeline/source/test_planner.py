"""The planner: where a micro-batch ends, with a log in a list and a clock in a variable."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.backfill.handover import page_position
from tailrace.backfill.spool import Page
from tailrace.errors import ReplanError
from tailrace.log.format.mark import Mark
from tailrace.log.reader import Extent
from tailrace.parking.parking import Release
from tailrace.pipeline.expressions.compile import fingerprint
from tailrace.pipeline.source.offset import Offset
from tailrace.pipeline.source.planner import (
    HEARTBEAT_S,
    OPEN_ROWS,
    Limits,
    PlannedVersions,
    Planner,
    split,
)
from tailrace.position import ORIGIN, Lsn, Position
from tailrace.snapshot.table import Table
from tailrace.visibility import Visibility
from tests.fix_log import relation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.schema import Relation, TypeName

NOW = 1000.0
OLD, NEW = relation(1), relation(1, version=1)
OTHER = relation(2)


def at(number: int) -> Position:
    """The position of transaction `number`, which has one change."""
    return ORIGIN if number == 0 else Position(Lsn(number * 0x10), 0)


@dataclass
class FakeLog:
    """Transactions 1 to `count`, each with one row of ten bytes.

    `versions` are the table versions in use: the number of the transaction that states one first
    (0: before the log begins) and the relation.
    """

    count: int
    read_upto: int = 0
    """How far capture has read, as the number of a transaction; at least `count`."""
    versions: list[tuple[int, Relation]] = field(default_factory=list)

    def timeline(self, end: Mark) -> int:
        assert end == self.end()
        return 4

    def end(self) -> Mark:
        lsn = Lsn(max(self.count, self.read_upto) * 0x10)
        return Mark(sequence=1, offset=0, position=at(self.count), end_lsn=lsn, time=0, epoch=1)

    def extent(
        self, after: Position, *, rows: int, size: int, upto: Position | None = None
    ) -> Extent:
        first = int(after.lsn) // 0x10 + 1
        last = self.count if upto is None else min(self.count, int(upto.lsn) // 0x10)
        for taken, number in enumerate(range(first, last + 1), 1):
            if taken >= rows or taken * 10 >= size or number == last:
                return Extent(at(number), taken, taken * 10)
        return Extent(after, 0, 0)

    def relations(
        self, after: Position, upto: Position | None = None, *, in_force: bool = True
    ) -> Iterator[tuple[Position, Relation, dict[int, TypeName]]]:
        for number, stated in self.versions:
            if at(number) <= after:
                if in_force:
                    yield after, stated, {}
            elif upto is None or at(number) <= upto:
                yield at(number - 1), stated, {}


def plan(
    planner: Planner,
    log: FakeLog,
    start: Offset | int = 0,
    *,
    rows: int = 1000,
    size_bytes: int = 1 << 30,
    target: int | None = None,
    now: float = NOW,
) -> Offset | None:
    offset = Offset(position=at(start)) if isinstance(start, int) else start
    return planner.next_end(
        log,
        offset,
        limits=Limits(rows=rows, size_bytes=size_bytes),
        target=None if target is None else at(target),
        now=now,
    )


def ending(number: int) -> Offset:
    return Offset(position=at(number))


# The end in the log.


def test_a_batch_ends_with_the_log() -> None:
    assert plan(Planner(now=NOW), FakeLog(5)) == ending(5)


def test_a_batch_ends_with_the_entry_that_reaches_a_limit() -> None:
    assert plan(Planner(now=NOW), FakeLog(5), rows=3) == ending(3)
    assert plan(Planner(now=NOW), FakeLog(5), 3, rows=3) == ending(5)
    assert plan(Planner(now=NOW), FakeLog(5), size_bytes=15) == ending(2)


def test_without_changes_there_is_no_batch() -> None:
    assert plan(Planner(now=NOW), FakeLog(5), 5) is None
    assert plan(Planner(now=NOW), FakeLog(0)) is None


def test_a_target_ends_the_query_before_the_log() -> None:
    planner = Planner(now=NOW)
    assert plan(planner, FakeLog(5), target=3) == ending(3)
    assert plan(planner, FakeLog(5), 3, target=3) is None


@given(st.integers(0, 20), st.integers(1, 7))
def test_consecutive_batches_cover_the_log_without_gaps(count: int, rows: int) -> None:
    planner, log, start, sizes = Planner(now=NOW), FakeLog(count), ending(0), []
    while (end := plan(planner, log, start, rows=rows)) is not None:
        sizes.append(int(end.position.lsn - start.position.lsn) // 0x10)
        start = end
    assert start == ending(count)
    assert sum(sizes) == count
    assert all(size == rows for size in sizes[:-1])


# Heartbeats.


def test_an_idle_query_sends_a_heartbeat_after_its_interval() -> None:
    planner, log, idle = Planner(now=NOW), FakeLog(5), ending(5)
    assert plan(planner, log, idle, now=NOW + HEARTBEAT_S - 1) is None
    first = plan(planner, log, idle, now=NOW + HEARTBEAT_S)
    assert first == replace(idle, heartbeat=1)
    assert plan(planner, log, first, now=NOW + HEARTBEAT_S + 1) is None
    assert plan(planner, log, first, now=NOW + 2 * HEARTBEAT_S) == replace(idle, heartbeat=2)


def test_a_batch_postpones_the_heartbeat_and_resets_its_count() -> None:
    planner, log = Planner(now=NOW), FakeLog(5)
    late = NOW + HEARTBEAT_S
    assert plan(planner, log, Offset(position=at(4), heartbeat=3), now=late) == ending(5)
    assert plan(planner, log, 5, now=late + HEARTBEAT_S - 1) is None


def test_a_query_with_a_target_sends_no_heartbeat() -> None:
    assert plan(Planner(now=NOW), FakeLog(5), 5, target=5, now=NOW + 10 * HEARTBEAT_S) is None


def test_a_heartbeat_keeps_the_delivered_page() -> None:
    start = Offset(position=at(5), page=7, pages=(6, 7))
    end = plan(Planner(now=NOW), FakeLog(5), start, now=NOW + HEARTBEAT_S)
    assert end == replace(start, heartbeat=1)


# Parked messages.


def releasing(*counts: int, opens: bool = False) -> Planner:
    """A planner of a pipeline with so many parked messages in each release, none if 0."""
    left = list(counts)

    def release(start: Offset, may_release: bool) -> Release | None:
        count = left.pop(0) if left and may_release else 0
        last = Position(start.position.lsn, start.position.ordinal + count)
        return Release(start.release + 1, last) if count else None

    return Planner(now=NOW, release=release, opens=opens)


def test_parked_messages_precede_the_log_in_a_batch_of_their_own() -> None:
    planner, log = releasing(3), FakeLog(5)
    first = plan(planner, log, 2)
    assert first == Offset(position=Position(at(2).lsn, 3), release=1)
    assert first is not None
    assert plan(planner, log, first) == replace(ending(5), release=1)


def test_releases_and_the_log_take_turns() -> None:
    planner, log = releasing(3, 3, 3), FakeLog(5)
    first = plan(planner, log, 4)
    assert first is not None
    second = plan(planner, log, first)
    assert second == replace(ending(5), release=1)
    third = plan(planner, log, second)
    assert third == Offset(position=Position(at(5).lsn, 3), release=2)


def test_open_batches_keep_the_number_of_the_last_release() -> None:
    planner, log = releasing(3, opens=True), FakeLog(5)
    first = plan(planner, log, 5)
    assert first is not None
    following = plan(planner, log, first)
    assert following is not None
    assert (following.open, following.release) == (True, 1)


# Versions of tables.


def planned(*relations: Relation, wanted: Callable[[Relation], bool] | None = None) -> Planner:
    versions = PlannedVersions(
        wanted=wanted or (lambda _: True),
        fingerprints=frozenset(fingerprint(found, {}) for found in relations),
    )
    return Planner(now=NOW, versions=versions)


def test_a_batch_ends_before_a_version_that_the_plan_does_not_cover() -> None:
    log = FakeLog(5, versions=[(0, OLD), (3, NEW)])
    planner = planned(OLD)
    assert plan(planner, log) == ending(2)
    with pytest.raises(ReplanError, match=r"public\.t1 has changed"):
        plan(planner, log, 2)
    assert plan(planned(OLD, NEW), log, 2) == ending(5)


def test_a_version_in_force_at_the_start_needs_a_plan() -> None:
    with pytest.raises(ReplanError):
        plan(planned(OLD), FakeLog(5, versions=[(0, NEW)]))


def test_the_versions_in_force_are_checked_once() -> None:
    planner = planned(OLD)
    assert plan(planner, FakeLog(3, versions=[(0, OLD)])) == ending(3)
    later = FakeLog(5, versions=[(0, OLD), (0, OTHER)])
    assert plan(planner, later, 3) == ending(5)


def test_tables_of_other_pipelines_need_no_plan() -> None:
    planner = planned(OLD, wanted=lambda found: found.oid == OLD.oid)
    assert plan(planner, FakeLog(5, versions=[(0, OLD), (3, OTHER)])) == ending(5)


def test_frames_that_read_any_version_have_no_plan() -> None:
    assert plan(Planner(now=NOW), FakeLog(5, versions=[(3, NEW)])) == ending(5)


# Pages of backfills.


def page(number: int, *, lsn: int, rows: int = 10, table: Relation = OLD) -> Page:
    """A page that sees everything before transaction `lsn`."""
    return Page(
        number=number,
        backfill="b",
        table=Table(relation=table, types={}),
        key=("id",),
        visibility=Visibility(xmin=1, xmax=1),
        lsn=Lsn(lsn * 0x10),
        taken_at=datetime(2026, 1, 31, tzinfo=UTC),
        since=ORIGIN,
        rows=rows,
        size=0,
        read=0,
        cursor=(),
        last=False,
    )


def with_pages(*pages: Page, max_page_rows: int = 1000) -> Planner:
    return Planner(
        now=NOW,
        max_page_rows=max_page_rows,
        pages=lambda after: [found for found in pages if found.number > after],
    )


def test_a_page_follows_the_changes_that_it_contains() -> None:
    first = page(1, lsn=3)
    end = plan(with_pages(first), FakeLog(5))
    assert end == Offset(position=page_position(first, at(5)), page=1, pages=(1,))
    assert at(5) < end.position < at(6)


def test_a_page_waits_for_the_changes_that_it_contains() -> None:
    planner, log = with_pages(page(1, lsn=5)), FakeLog(5)
    assert plan(planner, log, rows=3) == ending(3)
    end = plan(planner, log, 3)
    assert end is not None
    assert end.pages == (1,)


def test_at_the_end_of_the_log_a_page_waits_until_capture_has_read_up_to_it() -> None:
    planner = with_pages(page(1, lsn=9))
    assert plan(planner, FakeLog(5, read_upto=8), 5) is None
    end = plan(planner, FakeLog(5, read_upto=9), 5)
    assert end is not None
    assert end.pages == (1,)


def test_a_position_after_the_last_change_names_its_timeline() -> None:
    """A standby that is promoted may lack the WAL up to there."""
    pages = (page(1, lsn=4), page(2, lsn=8), page(3, lsn=8))
    first = plan(with_pages(*pages[:1]), FakeLog(5))
    assert first is not None
    assert first.timeline == 0
    second = plan(with_pages(*pages[:2]), FakeLog(5, read_upto=9), first)
    assert second is not None
    assert (second.pages, second.timeline) == ((2,), 4)
    third = plan(with_pages(*pages), FakeLog(5, read_upto=9), second)
    assert third is not None
    assert (third.pages, third.timeline) == ((3,), 4)
    # No open batch before the next change: its task does not look at timelines.
    assert plan(opening(far=True), FakeLog(5, read_upto=9), third) is None
    change = plan(opening(far=True), FakeLog(10), third)
    assert change == Offset(position=at(10), page=3)
    following = plan(opening(far=True), FakeLog(11), change)
    assert following == Offset(position=at(10), page=3, opened=1, open=True)


def test_a_batch_takes_pages_up_to_its_rows() -> None:
    pages = [page(number, lsn=1, rows=10) for number in range(1, 6)]
    planner = with_pages(*pages, max_page_rows=25)
    first = plan(planner, FakeLog(5))
    assert first is not None
    assert (first.pages, first.page) == ((1, 2, 3), 3)
    second = plan(planner, FakeLog(5), first)
    assert second is not None
    assert (second.pages, second.page) == ((4, 5), 5)
    assert second.position > first.position
    assert plan(planner, FakeLog(5), second) is None


def test_a_batch_of_changes_keeps_the_number_of_the_last_page() -> None:
    start = Offset(position=at(3), page=7, pages=(7,))
    assert plan(with_pages(page(7, lsn=1)), FakeLog(5), start) == Offset(position=at(5), page=7)


def test_a_page_of_a_version_without_a_plan_ends_the_batch_or_asks_for_a_plan() -> None:
    known, unknown = page(1, lsn=1), page(2, lsn=1, table=NEW)
    versions = PlannedVersions(
        wanted=lambda _: True, fingerprints=frozenset({fingerprint(OLD, {})})
    )

    def planner(*pages: Page) -> Planner:
        return Planner(now=NOW, pages=lambda _: pages, versions=versions)

    end = plan(planner(known, unknown), FakeLog(1))
    assert end is not None
    assert end.pages == (1,)
    assert plan(planner(unknown), FakeLog(3)) == ending(3)
    with pytest.raises(ReplanError, match="not in the plan"):
        plan(planner(unknown), FakeLog(3), 3)


# Ranges of one batch.


@given(st.integers(1, 30), st.integers(1, 8))
def test_ranges_cover_a_batch_without_gaps(count: int, parts: int) -> None:
    ranges = split(FakeLog(count), at(0), at(count), parts)
    assert [after for after, _ in ranges] == [at(0), *(upto for _, upto in ranges[:-1])]
    assert ranges[-1][1] == at(count)
    assert len(ranges) <= parts + 1


def test_an_offset_survives_its_json() -> None:
    for offset in (
        Offset(position=at(3)),
        Offset(position=at(3), page=4, pages=(3, 4)),
        Offset(position=at(3), page=4, heartbeat=2),
        Offset(position=at(3), page=4, timeline=2),
    ):
        assert Offset.parse(offset.dump()) == offset
    assert Offset(position=Position(Lsn(0x10), 2)).dump() == {"position": "0/10.2"}


# Open batches.


def opening(opened: bool = True, *, far: bool = False) -> Planner:
    return Planner(now=NOW, opens=opened, opens_far=far)


def test_near_the_end_of_the_log_a_batch_is_open() -> None:
    """Its offset names it by the position that it begins after, and by a number."""
    log = FakeLog(5)
    first = plan(opening(), log, 2)
    assert first == Offset(position=at(2), opened=1, open=True)
    # It ended where it began: the next one has the same position, and another number.
    ended = Offset(position=at(2), opened=1)
    assert plan(opening(), log, ended) == Offset(position=at(2), opened=2, open=True)
    assert plan(opening(), log, 5) == Offset(position=at(5), opened=1, open=True)
    assert plan(opening(opened=False), log, 2) == ending(5)


def test_far_from_the_end_of_the_log_a_batch_is_closed() -> None:
    log = FakeLog(OPEN_ROWS + 5)
    start = Offset(position=at(0), opened=3)
    far = plan(opening(), log, start, rows=OPEN_ROWS)
    assert far == Offset(position=at(OPEN_ROWS), opened=3)
    assert plan(opening(), log, far) == Offset(position=far.position, opened=4, open=True)
    assert plan(opening(), log, 0, rows=1 << 30) == ending(OPEN_ROWS + 5)
    assert plan(opening(), FakeLog(5), 0, rows=5) == ending(5)
    assert plan(opening(), FakeLog(5), 0, target=5) == ending(5)
    assert plan(opening(), FakeLog(5), 5, target=5) is None


def test_a_task_that_reads_and_delivers_has_open_batches_everywhere() -> None:
    log = FakeLog(OPEN_ROWS + 5)
    for rows in (5, OPEN_ROWS, 1 << 30):
        found = plan(opening(far=True), log, 0, rows=rows)
        assert found == Offset(position=at(0), opened=1, open=True)
    assert plan(opening(opened=False, far=True), FakeLog(5), 0) == ending(5)
    assert plan(opening(far=True), FakeLog(5), 0, target=5) == ending(5)
