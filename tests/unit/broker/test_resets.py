"""How many records a reset repeats and skips."""

from __future__ import annotations

import pytest

from tailrace.broker.resets import Move, Order, Reset, Target, _target


def move(old: int | None, new: int, *, first: int = 10, end: int = 20) -> Move:
    return Move(topic_id=1, topic="t", partition=0, first=first, end=end, old=old, new=new)


@pytest.mark.parametrize(
    ("old", "new", "repeated", "skipped"),
    [
        (15, 10, 5, 0),
        (15, 20, 0, 5),
        (15, 15, 0, 0),
        (None, 15, 0, 0),
        # Retention has deleted what is before offset 10.
        (3, 12, 0, 2),
        (3, 10, 0, 0),
        # A restored database has lost what is after offset 20.
        (40, 20, 0, 0),
        (40, 15, 5, 0),
    ],
)
def test_records_that_are_repeated_and_skipped(
    old: int | None, new: int, repeated: int, skipped: int
) -> None:
    found = move(old, new)
    assert (found.repeated, found.skipped) == (repeated, skipped)


@pytest.mark.parametrize(
    ("to", "expected"), [("earliest", 10), ("latest", 20), (15, 15), (0, 10), (99, 20)]
)
def test_a_target_is_within_the_partition(to: Target, expected: int) -> None:
    assert _target(to, 10, 20) == expected


def test_what_an_operator_sees() -> None:
    moves = [move(15, 10), move(15, 20), move(15, 15), move(None, 10), move(40, 20)]
    reset = Reset(order=Order(group="g", to=10), moves=tuple(moves * 5))
    lines = reset.lines()
    assert lines[:6] == [
        "Group g: 25 records are read again, 25 records are skipped.",
        "t:0: 15 becomes 10, 5 records are read again.",
        "t:0: 15 becomes 20, 5 records are skipped.",
        "t:0: remains 15.",
        "t:0: no committed offset, becomes 10.",
        "t:0: 40 becomes 20, there are no records between them.",
    ]
    assert lines[-1] == "And 5 more partitions."
    assert "never reads skipped records" in reset.warning
    assert not Reset(order=reset.order, moves=(move(15, 15),)).warning
