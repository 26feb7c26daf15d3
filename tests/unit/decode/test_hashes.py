"""Hashes of columns, and which messages belong together."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.decode.hashes import hash_of


@given(st.lists(st.none() | st.binary(max_size=30), max_size=30))
def test_a_hash_depends_only_on_the_value(values: list[bytes | None]) -> None:
    alone = [int(hash_of(pa.array([value], pa.binary()))[0]) for value in values]
    together = hash_of(pa.array(values, pa.binary())).tolist()
    assert together == alone
    distinct = set(values)
    assert len({hash_ for hash_, value in zip(alone, values, strict=True)}) == len(distinct)


def by_hand(value: bytes | None) -> int:
    """The hash of one value, computed byte by byte."""
    prime, mix = 0x100000001B3, 0x9E3779B97F4A7C15
    if value is None:
        return mix
    total: int = sum((byte + 1) * prime ** (at + 1) for at, byte in enumerate(value))
    return (total % 2**64) ^ (len(value) * mix % 2**64)


@given(st.none() | st.binary(max_size=30))
def test_a_hash_never_changes(value: bytes | None) -> None:
    assert hash_of(pa.array([value], pa.binary())).tolist() == [by_hand(value)]
