"""Retention: pins, limits, whole transactions, and what an interruption leaves."""

from __future__ import annotations

import errno
import random

import pytest

from tailrace.errors import ConfigError, CorruptError, DiskFullError
from tailrace.log import retention
from tailrace.log.format.segment import list_segments
from tailrace.log.reader import AtLsn, Earliest, Latest, Log, Start
from tailrace.log.retention import Limits
from tailrace.position import Lsn, Position
from tailrace.testing import MemoryStore, PowerCutError
from tests.chance import seeds
from tests.fix_log import SECOND, TIME, TestLog, all_changes, random_log, same, transaction

NOTHING_KEPT = Limits(keep_hours=0, keep_bytes=0)
HOUR = 3600 * SECOND


@pytest.fixture
def segmented() -> TestLog:
    """Segment 1 is empty, segments 2 to 7 hold a transaction each."""
    made = TestLog(segment_bytes=1)
    for number in range(6):
        made.append(transaction(number))
    return made


def sequences(made: TestLog, limits: Limits, *, now: int = TIME + 10 * HOUR) -> list[int]:
    return [name.sequence for name in retention.expired(made.store, limits, now_micros=now)]


def test_the_last_segment_always_stays(segmented: TestLog) -> None:
    assert sequences(segmented, NOTHING_KEPT) == [1, 2, 3, 4, 5, 6]


def test_within_the_limits_only_empty_segments_expire(segmented: TestLog) -> None:
    assert sequences(segmented, Limits()) == [1]


@pytest.mark.parametrize("hours_ago", [0, 1, 2])
def test_segments_older_than_keep_hours_expire(hours_ago: int) -> None:
    made = TestLog(segment_bytes=1)
    for number in range(6):
        unit = transaction(number)
        made.append(unit)
    now = transaction(3).time + hours_ago * HOUR
    limits = Limits(keep_hours=hours_ago)
    assert sequences(made, limits, now=now) == [1, 2, 3, 4]


def test_segments_beyond_keep_bytes_expire(segmented: TestLog) -> None:
    names = list_segments(segmented.store)
    sizes = {name.sequence: segmented.store.size(name.file) for name in names}
    kept = sizes[6] + sizes[5]
    assert sequences(segmented, Limits(keep_bytes=kept)) == [1, 2, 3, 4]
    assert sequences(segmented, Limits(keep_bytes=kept - 1)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("position", "going"),
    [
        (Position(transaction(2).lsn, 1), [1, 2, 3, 4]),
        (Position(transaction(2).lsn, 0), [1, 2, 3]),
        (Position(transaction(9).lsn, 0), [1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_pin_keeps_the_segments_after_it(
    segmented: TestLog, position: Position, going: list[int]
) -> None:
    retention.pin(segmented.store, "reader", position, now=0)
    assert sequences(segmented, NOTHING_KEPT) == going


def test_the_slowest_pin_counts_until_it_goes(segmented: TestLog) -> None:
    retention.pin(segmented.store, "slow", Position(transaction(0).lsn, 1), now=0)
    retention.pin(segmented.store, "quick", Position(transaction(4).lsn, 1), now=0)
    assert sequences(segmented, NOTHING_KEPT) == [1, 2]
    retention.unpin(segmented.store, "slow")
    assert sequences(segmented, NOTHING_KEPT) == [1, 2, 3, 4, 5, 6]
    retention.unpin(segmented.store, "slow")


def test_pins_are_listed_and_moved() -> None:
    store = MemoryStore.holding({"pin-UPPER.json": b"?", "pins": b"", "pin-.json": b""})
    assert retention.pins(store) == {}
    first, second = transaction(0).changes()[0].position, transaction(1).changes()[0].position
    retention.pin(store, "a-b_1", first, now=0)
    retention.pin(store, "a-b_1", second, now=0)
    assert retention.pins(store) == {"a-b_1": second}


@pytest.mark.parametrize("name", ["", "A", "a/b", "../x", "a b", "é", "a" * 101, "a.json"])
def test_odd_names_are_refused(name: str) -> None:
    store = MemoryStore()
    with pytest.raises(ConfigError, match="invalid pin name"):
        retention.pin(store, name, Position(transaction(0).lsn, 0), now=0)
    assert store.names() == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b"{}", b'{"position": 5}', b'{"position": "x"}', b"[" * 4000, b"\xff"],
)
def test_a_pin_that_cannot_be_read_deletes_nothing(segmented: TestLog, content: bytes) -> None:
    segmented.store.write_atomic("pin-reader.json", content)
    with pytest.raises(CorruptError, match=r"pin-reader\.json"):
        sequences(segmented, NOTHING_KEPT)


def test_a_reader_needs_no_pin_but_its_own() -> None:
    position = Position(transaction(0).lsn, 1)
    store = MemoryStore.holding({"pin-other.json": b"{", "pin-broken.json": b"{"})
    retention.pin(store, "mine", position, now=0)
    assert retention.own_pin(store, "mine") == position
    assert retention.own_pin(store, "broken") is None
    assert retention.own_pin(store, "absent") is None
    retention.pin(store, "broken", position, now=0)
    assert retention.own_pin(store, "broken") == position


def test_a_pin_moves_on_a_full_disk() -> None:
    """Readers that go on are what frees a disk that the log has filled."""
    store = MemoryStore()
    first, second = transaction(0).changes()[0].position, transaction(1).changes()[0].position
    retention.pin(store, "reader", second, now=1e9)
    store.fail("write", code=errno.ENOSPC)
    retention.pin(store, "reader", first, now=3)
    store.power_cut(random.Random(1))
    assert retention.read_pins(store) == {"reader": retention.Pin(position=first, renewed_at=3)}


def test_a_first_pin_needs_space() -> None:
    store = MemoryStore()
    store.fail("write", code=errno.ENOSPC)
    with pytest.raises(DiskFullError):
        retention.pin(store, "reader", transaction(0).changes()[0].position, now=0)
    assert retention.pins(store) == {}


def test_deleting_leaves_the_rest_as_it_was(segmented: TestLog) -> None:
    going = retention.expired(segmented.store, Limits(keep_bytes=1000), now_micros=TIME)
    retention.delete(segmented.store, going)
    assert not any(name.file in segmented.store.names() for name in going)
    assert not any(name.index in segmented.store.names() for name in going)
    found = all_changes(segmented.store)
    assert found
    assert found == segmented.changes()[-len(found) :]


@pytest.mark.parametrize("seed", seeds(40, short=10))
def test_an_interrupted_deletion_leaves_no_hole(seed: int) -> None:
    rng = random.Random(seed)
    made = random_log(rng, entries=15, segment_bytes=300)
    going = retention.expired(made.store, NOTHING_KEPT, now_micros=TIME)
    made.store.cut_power_at(rng.randrange(1, 2 * len(going) + 1), rng)
    with pytest.raises(PowerCutError):
        retention.delete(made.store, going)
    made.store.power_cut(rng)
    assert list_segments(made.store)


def test_what_remains_begins_with_a_whole_transaction() -> None:
    """Segments rolled inside a transaction go together, or not at all."""
    for seed in range(30):
        made = random_log(random.Random(seed), entries=20, segment_bytes=200)
        changes = made.changes()
        middle = changes[len(changes) // 2].position
        retention.delete(made.store, retention.before(made.store, middle))
        found = all_changes(made.store)
        whole = [unit for unit in made.units if unit.lsn > made.log().earliest().lsn]
        assert same(found, [change for unit in whole for change in unit.changes()])
        assert [change for change in found if change.position > middle]


def test_before_a_position_is_what_holds_nothing_after_it(segmented: TestLog) -> None:
    going = retention.before(segmented.store, Position(transaction(2).lsn, 1))
    assert [name.sequence for name in going] == [1, 2, 3, 4]


def test_the_segment_of_the_mark_stays_whatever_is_asked_for() -> None:
    """After it are segments of a transaction that has not ended."""
    made = TestLog(segment_bytes=1)
    made.append(transaction(0))
    made.append_pieces(transaction(1, rows=6), 2, 4, 6, ending=False)
    end = Log(made.store).end()
    for position in (Position(transaction(9).lsn, 0), end.position):
        going = retention.before(made.store, position)
        assert all(name.sequence < end.sequence for name in going)
    retention.delete(made.store, retention.before(made.store, Position(transaction(9).lsn, 0)))
    made.appender.rewind()
    assert made.appender.mark.position == end.position


def test_configured_readers_without_a_pin_need_everything_from_their_start(
    segmented: TestLog,
) -> None:
    def kept(**readers: Start) -> int:
        expired = retention.expired(
            segmented.store, NOTHING_KEPT, now_micros=TIME + 10 * HOUR, readers=readers
        )
        return len(list_segments(segmented.store)) - len(expired)

    third = transaction(2).changes()[0].position.lsn
    assert kept(a=Latest()) == 1
    assert kept(a=Earliest(), b=Latest()) == 6
    assert kept(a=AtLsn(third)) == 4
    # The reader itself reports a start that is gone.
    assert kept(a=AtLsn(Lsn(1))) == 1
    retention.pin(segmented.store, "a", segmented.changes()[-1].position, now=0)
    assert kept(a=Earliest()) == 1


def test_pins_that_are_not_renewed_are_stale(segmented: TestLog) -> None:
    position = segmented.changes()[0].position
    retention.pin(segmented.store, "gone", position, now=1000)
    retention.pin(segmented.store, "busy", position, now=4000)
    assert list(retention.stale(segmented.store, now=5000)) == ["gone"]
    assert retention.stale(segmented.store, now=4600) == {}


def test_the_pin_of_a_backfill_is_no_pipelines_pin(segmented: TestLog) -> None:
    position = segmented.changes()[0].position
    retention.pin(segmented.store, retention.backfill_pin("a"), position, now=0)
    retention.pin(segmented.store, "a-backfill", position, now=0)
    assert sorted(retention.pins(segmented.store)) == ["a-backfill", "backfill.a"]
