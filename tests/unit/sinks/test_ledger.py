"""The ledger: after any failure and replay each message is committed once, or all are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import DivergedError, SinkRefusedError
from tailrace.message import last_of, rows_up_to
from tailrace.position import ORIGIN, READS, Lsn, Position
from tailrace.sinks.ledger import LaneId, LanePosition, Ledger, Tally
from tests.unit.sinks.rows import position, rows

LANE = LaneId(number=0, lanes=1, source="one")


def ledger_of(lane: LaneId, stored: dict[int, LanePosition]) -> Ledger:
    return Ledger(lane, stored, system="Kafka", guide="docs/guides/kafka.md")


def sent(ledger: Ledger, numbers: range) -> list[int]:
    """The messages that the ledger leaves to send."""
    left = ledger.missing(rows(numbers))
    return [int(value.split(b"\r\n")[0]) for value in left.column("payload").to_pylist()]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 4)), max_size=12),
    st.integers(1, 3),
)
def test_each_message_is_committed_once(
    sizes: list[int], attempts: list[tuple[bool, bool, int]], lanes: int
) -> None:
    """Attempts end before the commit, between commit and checkpoint, or after the checkpoint."""
    stored: dict[int, LanePosition] = {}
    committed: list[int] = []
    bounds = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    outcomes = iter([*attempts, *((True, True, 3) for _ in sizes)])
    at = 0
    while at < len(sizes):
        commits, checkpoints, step = next(outcomes)
        ledger = ledger_of(LaneId(number=0, lanes=lanes, source="one"), stored)
        ledger.open(position(bounds[at] - 1) if at else ORIGIN)
        numbers = range(bounds[at], bounds[at + 1])
        left = [
            n for i in range(0, len(numbers), step) for n in sent(ledger, numbers[i : i + step])
        ]
        ledger.verify()
        if commits:
            committed += left
            position_to_store = ledger.to_commit()
            stored = {0: position_to_store} if position_to_store else stored
            at += checkpoints
    assert committed == list(range(bounds[-1]))


def test_one_lane_skips_by_position_alone() -> None:
    ledger = ledger_of(LANE, {0: stored(9)})
    ledger.open(ORIGIN)
    assert sent(ledger, range(5, 15)) == [10, 11, 12, 13, 14]
    ledger.verify()


def stored(last: int, **changes: object) -> LanePosition:
    position_of_lane = LanePosition(
        position=position(last),
        after=ORIGIN,
        source="one",
        lane=0,
        lanes=1,
        count=last + 1,
        digest=0,
    )
    return replace(position_of_lane, **changes)  # type: ignore[arg-type]


def test_several_lanes_skip_exactly_the_stored_messages() -> None:
    lane = LaneId(number=0, lanes=2, source="one")
    first = ledger_of(lane, {})
    first.open(ORIGIN)
    sent(first, range(0, 20, 2))
    committed = first.to_commit()
    assert committed is not None
    again = ledger_of(lane, {0: committed})
    again.open(ORIGIN)
    assert sent(again, range(0, 20, 2)) == []
    again.verify()
    for others in (range(0, 18, 2), range(20), range(1, 20, 2), range(20, 30)):
        ledger = ledger_of(lane, {0: committed})
        ledger.open(ORIGIN)
        with pytest.raises(SinkRefusedError, match="the replayed batch has other messages"):
            send_and_verify(ledger, others)


def send_and_verify(ledger: Ledger, numbers: range) -> None:
    sent(ledger, numbers)
    ledger.verify()


def test_a_changed_number_of_lanes_is_refused_within_a_batch() -> None:
    ledger = ledger_of(LANE, {3: stored(9, lane=3, lanes=4)})
    with pytest.raises(SinkRefusedError, match="lane 3 of 4"):
        ledger.open(position(5))
    ledger.open(position(9))
    assert sent(ledger, range(10, 12)) == [10, 11]


def test_positions_of_another_history_are_refused() -> None:
    with pytest.raises(DivergedError, match=r"Kafka holds .* in the log other, but"):
        ledger_of(LANE, {0: stored(9, source="other")})


def test_a_reset_ignores_positions_of_another_history() -> None:
    lane = replace(LANE, reset=True)
    ledger = ledger_of(lane, {0: stored(9, source="other"), 1: stored(9, source="other", lanes=2)})
    ledger.open(ORIGIN)
    assert not ledger.ahead
    assert sent(ledger, range(5)) == [0, 1, 2, 3, 4]


def test_rows_that_are_rewound_are_written_again() -> None:
    ledger = Ledger(
        LaneId(number=0, lanes=2, source="one"), {}, system="Kafka", guide="docs/guides/kafka.md"
    )
    ledger.open(ORIGIN)
    sent(ledger, range(3))
    ledger.mark()
    sent(ledger, range(3, 9))
    ledger.rewind()
    assert sent(ledger, range(3, 5)) == [3, 4]
    whole = Tally()
    whole.add(rows(range(5)))
    found = ledger.to_commit()
    assert found is not None
    assert (found.position, found.count, found.digest) == (position(4), whole.count, whole.digest)


def test_an_empty_batch_commits_no_position() -> None:
    ledger = ledger_of(LANE, {})
    ledger.open(ORIGIN)
    sent(ledger, range(0))
    assert ledger.to_commit() is None


@given(st.integers(0, 2**64 - 1), st.integers(0, READS * 2 - 1))
def test_a_stored_position_can_be_read_back(lsn: int, ordinal: int) -> None:
    stored_position = stored(9, position=Position(Lsn(lsn), ordinal), digest=lsn, source='a "b" ž')
    assert LanePosition.load(stored_position.dump()) == stored_position


@given(st.lists(st.integers(0, 40), unique=True, min_size=1).map(sorted), st.integers(0, 40))
def test_rows_up_to_a_position_are_counted(numbers: list[int], bound: int) -> None:
    batch = rows(numbers)
    assert rows_up_to(batch, position(bound)) == sum(number <= bound for number in numbers)
    assert last_of(batch) == position(numbers[-1])


@given(st.lists(st.integers(0, 99), unique=True), st.integers(0, 50))
def test_a_tally_does_not_depend_on_batch_boundaries(numbers: list[int], cut: int) -> None:
    whole, parts = Tally(), Tally()
    whole.add(rows(numbers))
    for part in (numbers[cut:], numbers[:cut]):
        parts.add(rows(part))
    assert whole == parts
    less = Tally()
    less.add(rows(numbers[1:]))
    assert not numbers or less != whole
