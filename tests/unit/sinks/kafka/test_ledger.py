"""The ledger: whatever is cut off and comes again, each message is sent once or all is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import SinkRefusedError
from tailrace.position import ORIGIN, READS, Lsn, Position
from tailrace.sinks.kafka.ledger import Lane, Ledger, Tally, last_of, upto
from tailrace.sinks.kafka.positions import Reached
from tests.unit.sinks.rows import position, rows

LANE = Lane(number=0, of=1, source="one")


def sent(ledger: Ledger, numbers: range) -> list[int]:
    """Which of these messages are left to send."""
    left = ledger.missing(rows(numbers))
    return [int(value.split(b"\r\n")[0]) for value in left.column("payload").to_pylist()]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 4)), max_size=12),
    st.integers(1, 3),
)
def test_each_message_is_committed_once(
    sizes: list[int], lives: list[tuple[bool, bool, int]], lanes: int
) -> None:
    """A lane's batches, through lives that end before or after the commit, or after all."""
    stored: dict[int, Reached] = {}
    committed: list[int] = []
    bounds = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    ends = iter([*lives, *((True, True, 3) for _ in sizes)])
    at = 0
    while at < len(sizes):
        commits, checkpoints, step = next(ends)
        ledger = Ledger(Lane(number=0, of=lanes, source="one"), stored)
        ledger.open(position(bounds[at] - 1) if at else ORIGIN)
        numbers = range(bounds[at], bounds[at + 1])
        left = [
            n for i in range(0, len(numbers), step) for n in sent(ledger, numbers[i : i + step])
        ]
        ledger.verify()
        if commits:
            committed += left
            reached = ledger.reached()
            stored = {0: reached} if reached else stored
            at += checkpoints
    assert committed == list(range(bounds[-1]))


def test_one_lane_skips_by_position_alone() -> None:
    ledger = Ledger(LANE, {0: stored(9)})
    ledger.open(ORIGIN)
    assert sent(ledger, range(5, 15)) == [10, 11, 12, 13, 14]
    ledger.verify()


def stored(last: int, **changes: object) -> Reached:
    made = Reached(
        position=position(last),
        after=ORIGIN,
        source="one",
        lane=0,
        lanes=1,
        count=last + 1,
        digest=0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_several_lanes_skip_what_they_stored_and_nothing_else() -> None:
    lane = Lane(number=0, of=2, source="one")
    first = Ledger(lane, {})
    first.open(ORIGIN)
    sent(first, range(0, 20, 2))
    reached = first.reached()
    assert reached is not None
    again = Ledger(lane, {0: reached})
    again.open(ORIGIN)
    assert sent(again, range(0, 20, 2)) == []
    again.verify()
    for others in (range(0, 18, 2), range(20), range(1, 20, 2), range(20, 30)):
        ledger = Ledger(lane, {0: reached})
        ledger.open(ORIGIN)
        with pytest.raises(SinkRefusedError, match="not those that come now"):
            _through(ledger, others)


def _through(ledger: Ledger, numbers: range) -> None:
    sent(ledger, numbers)
    ledger.verify()


def test_another_number_of_lanes_is_refused_within_a_batch() -> None:
    ledger = Ledger(LANE, {3: stored(9, lane=3, lanes=4)})
    with pytest.raises(SinkRefusedError, match="lane 3 of 4"):
        ledger.open(position(5))
    ledger.open(position(9))
    assert sent(ledger, range(10, 12)) == [10, 11]


def test_positions_of_another_source_mean_nothing() -> None:
    ledger = Ledger(LANE, {0: stored(9, source="other"), 1: stored(9, source="other", lanes=2)})
    ledger.open(ORIGIN)
    assert not ledger.ahead
    assert sent(ledger, range(5)) == [0, 1, 2, 3, 4]


def test_nothing_given_reaches_nothing() -> None:
    ledger = Ledger(LANE, {})
    ledger.open(ORIGIN)
    sent(ledger, range(0))
    assert ledger.reached() is None


@given(st.integers(0, 2**64 - 1), st.integers(0, READS * 2 - 1))
def test_a_record_can_be_read_back(lsn: int, ordinal: int) -> None:
    reached = stored(9, position=Position(Lsn(lsn), ordinal), digest=lsn, source='a "b" ž')
    assert Reached.load(reached.dump()) == reached


@given(st.lists(st.integers(0, 40), unique=True, min_size=1).map(sorted), st.integers(0, 40))
def test_rows_up_to_a_position(numbers: list[int], bound: int) -> None:
    batch = rows(numbers)
    assert upto(batch, position(bound)) == sum(number <= bound for number in numbers)
    assert last_of(batch) == position(numbers[-1])


@given(st.lists(st.integers(0, 99), unique=True), st.integers(0, 50))
def test_a_tally_does_not_hang_on_how_rows_are_cut(numbers: list[int], cut: int) -> None:
    whole, parts = Tally(), Tally()
    whole.add(rows(numbers))
    for part in (numbers[cut:], numbers[:cut]):
        parts.add(rows(part))
    assert whole == parts
    less = Tally()
    less.add(rows(numbers[1:]))
    assert not numbers or less != whole
