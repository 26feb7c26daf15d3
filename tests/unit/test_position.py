from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.position import MAX_LSN, Lsn, Position

lsns = st.integers(0, MAX_LSN) | st.sampled_from(
    [2**31 - 1, 2**31, 2**53 - 1, 2**53 + 1, 2**63 - 1, 2**63, MAX_LSN]
)


@given(lsns)
def test_lsn_text_round_trip(value: int) -> None:
    assert Lsn.parse(str(Lsn(value))) == value


@given(lsns, st.integers(0, 2**64))
def test_position_text_round_trip(lsn: int, ordinal: int) -> None:
    position = Position(Lsn(lsn), ordinal)
    assert Position.parse(str(position)) == position


@given(lsns, lsns)
def test_event_ids_sort_like_commit_lsns(one: int, other: int) -> None:
    ids = Position(Lsn(one)).event_id[:16], Position(Lsn(other)).event_id[:16]
    assert (ids[0] < ids[1]) == (one < other)


@pytest.mark.parametrize("text", ["", "0", "1/2/3", "g/0", "0/123456789", "-1/0", " 0/0"])
def test_what_is_not_an_lsn(text: str) -> None:
    with pytest.raises(ValueError, match="must be an LSN such as"):
        Lsn.parse(text)


@pytest.mark.parametrize("value", [-1, MAX_LSN + 1])
def test_what_does_not_fit(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        Lsn(value)


def test_what_is_not_a_position() -> None:
    with pytest.raises(ValueError, match="must be a position such as"):
        Position.parse("0/1.x")
