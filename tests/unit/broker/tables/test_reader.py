"""The tails: the latest batches of partitions in memory."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.tables.reader import Tails

KEY, OTHER = (1, 0), (1, 1)


def batch(size: int = 100) -> bytes:
    return bytes(8) + b"x" * (size - 8)


def first_offsets(data: bytes | None, size: int = 100) -> list[int]:
    assert data is not None
    return [struct.unpack_from(">q", data, at)[0] for at in range(0, len(data), size)]


def filled(max_bytes: int = 10_000) -> Tails:
    """Three batches of ten records, from offset 50 on."""
    tails = Tails(max_bytes)
    for first in (50, 60, 70):
        tails.add(KEY, first, 10, batch())
    return tails


def test_batches_from_the_one_that_has_the_offset() -> None:
    tails = filled()
    assert first_offsets(tails.read(KEY, 50, 1000)) == [50, 60, 70]
    assert first_offsets(tails.read(KEY, 65, 1000)) == [60, 70]
    assert first_offsets(tails.read(KEY, 79, 1000)) == [70]


def test_offsets_that_are_not_in_memory() -> None:
    tails = filled()
    assert tails.read(KEY, 49, 1000) is None
    assert tails.read(KEY, 80, 1000) is None
    assert tails.read(OTHER, 50, 1000) is None


def test_at_least_one_batch_is_read() -> None:
    tails = filled()
    assert first_offsets(tails.read(KEY, 50, 1)) == [50]
    assert first_offsets(tails.read(KEY, 50, 200)) == [50, 60]


def test_a_batch_over_the_limit_is_not_read() -> None:
    """Only the first partition of a response may exceed its limit: `at_least_one`."""
    tails = filled()
    assert tails.read(KEY, 50, 99, at_least_one=False) == b""
    assert first_offsets(tails.read(KEY, 50, 100, at_least_one=False)) == [50]
    assert first_offsets(tails.read(KEY, 50, 299, at_least_one=False)) == [50, 60]


def test_a_gap_starts_a_new_tail() -> None:
    """SQL wrote records in between: they are in the table only."""
    tails = filled()
    tails.add(KEY, 90, 10, batch())
    assert tails.read(KEY, 70, 1000) is None
    assert first_offsets(tails.read(KEY, 95, 1000)) == [90]


def test_the_least_recently_written_partition_is_dropped_first() -> None:
    tails = filled(500)
    tails.add(OTHER, 0, 10, batch())
    tails.add(OTHER, 10, 10, batch())
    tails.add(OTHER, 20, 10, batch())
    assert first_offsets(tails.read(KEY, 60, 1000)) == [60, 70]
    assert tails.read(KEY, 50, 1000) is None
    assert first_offsets(tails.read(OTHER, 0, 1000)) == [0, 10, 20]


def test_a_batch_over_the_limit_is_not_held() -> None:
    tails = filled(500)
    tails.add(OTHER, 0, 10, batch(600))
    assert tails.read(OTHER, 0, 1000) is None
    tails.add(OTHER, 10, 10, batch())
    assert first_offsets(tails.read(OTHER, 10, 1000)) == [10]


def test_clear_drops_everything() -> None:
    tails = filled()
    tails.clear()
    assert tails.read(KEY, 50, 1000) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(8, 300), st.booleans()), max_size=50),
    st.integers(0, 1000),
)
def test_the_memory_is_limited(steps: list[tuple[int, int, bool]], max_bytes: int) -> None:
    tails, ends = Tails(max_bytes), dict.fromkeys(range(4), 0)
    for partition, size, gap in steps:
        first = ends[partition] + (5 if gap else 0)
        tails.add((1, partition), first, 10, batch(size))
        ends[partition] = first + 10
        held = sum(tail.size for tail in tails._tails.values())
        assert held == tails._size <= max_bytes
