"""How many records a reset repeats and skips."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.broker.resets import Move, Order, Reset, Target, _target, parse_offsets
from tailrace.errors import ConfigError


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


def test_what_was_shown_is_done_or_refused() -> None:
    """GIVEN the offsets that an operator has seen WHEN the partitions have grown or lost their
    beginning THEN the new offsets are those that were shown; and WHEN the group has committed
    since, or a partition was added, THEN it is refused."""
    moves = (move(15, 20), replace(move(None, 20), partition=1))
    first = Reset(order=Order(group="g", to="latest"), moves=moves)
    offsets = parse_offsets(first.offsets())
    later = tuple(replace(each, end=90, new=90) for each in first.moves)
    assert replace(first, moves=later).as_shown(offsets).offsets() == first.offsets()
    trimmed = tuple(replace(each, first=30, end=90, new=90) for each in first.moves)
    found = replace(first, moves=trimmed).as_shown(offsets)
    assert [each.new for each in found.moves] == [30, 30]
    for others in (
        (replace(later[0], old=16), later[1]),
        (*later, replace(later[0], partition=2)),
        later[:1],
    ):
        with pytest.raises(ConfigError, match="have changed since"):
            replace(first, moves=others).as_shown(offsets)


@pytest.mark.parametrize("text", ["1", "1:2:3", "1:2:3:", "1:2:3:4;", "-1:2:3:4", "\u0661:2:3:4"])
def test_offsets_that_no_page_has_shown(text: str) -> None:
    with pytest.raises(ValueError, match="offsets that were shown"):
        parse_offsets(text)
