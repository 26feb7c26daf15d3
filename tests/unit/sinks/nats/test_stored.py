from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.position import Lsn, Position
from tailrace.sinks.nats.stored import Stored, position_of
from tests.unit.sinks.rows import message_id, position, rows

DESTINATION = b"cdc.orders.insert"


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 10**12), st.text(max_size=20))
def test_positions_of_both_forms(lsn: int, ordinal: int, table: str) -> None:
    place = Position(Lsn(lsn), ordinal)
    assert position_of(place.event_id.encode()) == place
    assert position_of(f"{lsn:x}-{table}-insert-{ordinal}".encode()) == place


@pytest.mark.parametrize(
    "name",
    [
        *(b"", b"-", b"1a", b"1a-", b"-3", b"xyz-3", b"1A-3", b"1_a-3", b"1a-3 ", b"1a-+3"),
        b"550e8400-e29b-41d4-a716-446655440000",
    ],
)
def test_ids_of_others(name: bytes) -> None:
    assert position_of(name) is None


def holding(numbers: set[int], destination: bytes = DESTINATION) -> Stored:
    return Stored(
        [int(position(number).lsn) for number in numbers],
        [destination + b" " + message_id(number) for number in numbers],
    )


@settings(deadline=None)
@given(st.sets(st.integers(0, 60)), st.integers(0, 60), st.integers(0, 40))
def test_exactly_what_is_not_stored_is_missing(stored: set[int], start: int, count: int) -> None:
    batch = rows(range(start, start + count))
    missing = holding(stored).missing(batch)
    expected = [message_id(n) for n in range(start, start + count) if n not in stored]
    assert missing.column("id").to_pylist() == expected


def test_another_subject_is_another_message() -> None:
    batch = rows(range(5))
    assert holding({1, 2}, b"cdc.orders.update").missing(batch).num_rows == 5


@settings(deadline=None)
@given(st.sets(st.integers(0, 60)), st.integers(0, 60))
def test_only_what_is_delivered_is_forgotten(stored: set[int], done: int) -> None:
    missing = holding(stored).beyond(position(done)).missing(rows(range(done + 1, 61)))
    expected = [message_id(n) for n in range(done + 1, 61) if n not in stored]
    assert missing.column("id").to_pylist() == expected
