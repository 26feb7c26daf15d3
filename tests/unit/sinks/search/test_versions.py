"""Versions of documents: never lower for a later change."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import SinkRefusedError, UnexpectedError
from tailrace.message import MESSAGES
from tailrace.position import PAGE_BITS, READS, RELEASED, Lsn, Position
from tailrace.sinks.search.versions import GENERATIONS, generation_of, versions_of

COMMITS = st.builds(
    lambda cell, ordinal: Position(Lsn(cell * 8), ordinal),
    st.integers(0, 2000) | st.integers(0, (1 << 51) - 1),
    st.integers(0, 1000) | st.integers(0, READS - 1),
)
READ_ROWS = st.builds(
    lambda lsn, page, row: Position(Lsn(lsn), READS | page << PAGE_BITS | row),
    st.integers(0, 16_000) | st.integers(0, (1 << 54) - 1),
    st.integers(0, 1 << 20),
    st.integers(0, RELEASED - 1),
)


def versions(*positions: Position, generation: int = 0, names: tuple[bytes, ...] = ()) -> list[int]:
    rows = [
        {
            "destination": b"",
            "id": names[at] if names else each.event_id.encode(),
            "payload": b"",
            "lsn": int(each.lsn),
            "ordinal": each.ordinal,
            "committed_at": 0,
            "scope": 0,
        }
        for at, each in enumerate(positions)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=MESSAGES)
    found: list[int] = versions_of(batch, generation=generation).tolist()
    return found


@given(st.lists(COMMITS | READ_ROWS, min_size=2, max_size=20))
def test_versions_are_ordered_as_positions_are(positions: list[Position]) -> None:
    found = versions(*sorted(positions))
    assert found == sorted(found)
    assert all(0 <= each < 1 << 63 for each in found)


@given(st.lists(COMMITS.filter(lambda each: each.ordinal < 511), min_size=2, unique=True))
def test_changes_early_in_their_transactions_have_versions_of_their_own(
    positions: list[Position],
) -> None:
    assert len(set(versions(*positions))) == len(positions)


def test_another_generation_is_higher_than_all_before() -> None:
    highest, lowest = Position(Lsn((1 << 54) - 8), READS - 1), Position(Lsn(0), 0)
    for generation in range(1, GENERATIONS):
        [before] = versions(highest, generation=generation - 1)
        [after] = versions(lowest, generation=generation)
        assert before < after < 1 << 63
        assert (generation_of(before), generation_of(after)) == (generation - 1, generation)


def test_a_released_message_has_the_version_of_its_first_position() -> None:
    first = Position(Lsn(64), 5)
    again = Position(Lsn(800), READS | 3 << PAGE_BITS | RELEASED | 1)
    name = first.event_id.encode()
    assert versions(again, names=(name,)) == versions(first)
    read = Position(Lsn(65), READS | 1 << PAGE_BITS | 7)
    assert versions(again, names=(read.event_id.encode(),)) == versions(read)
    assert versions(again, names=(b"orders-7",)) == versions(Position(Lsn(800), 511))


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(SinkRefusedError, match="too large"):
        versions(Position(Lsn(1 << 54), 0))
    with pytest.raises(UnexpectedError, match="multiple of 8"):
        versions(Position(Lsn(9), 0))
