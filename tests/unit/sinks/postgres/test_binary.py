"""COPY's binary format, read back with the documented layout."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sinks.postgres import binary

if TYPE_CHECKING:
    import pytest


def read(data: bytes) -> list[list[bytes | None]]:
    """The rows of a COPY."""
    assert data[:19] == b"PGCOPY\n\xff\r\n\0" + bytes(8)
    at, rows = 19, []
    while (count := struct.unpack_from(">h", data, at)[0]) != -1:
        at += 2
        row: list[bytes | None] = []
        for _ in range(count):
            length = struct.unpack_from(">i", data, at)[0]
            at += 4
            row.append(None if length < 0 else data[at : at + length])
            at += max(length, 0)
        rows.append(row)
    assert at + 2 == len(data)
    return rows


def copied(*fields: Any) -> list[list[bytes | None]]:
    return read(b"".join(bytes(chunk) for chunk in binary.chunks(fields)))


values = st.lists(st.one_of(st.none(), st.binary(max_size=9)), max_size=9)


@given(values, st.integers(0, 4))
def test_values_are_read_back(found: list[bytes | None], skipped: int) -> None:
    column = pa.array(found, pa.binary()).slice(skipped)
    numbers = np.arange(len(column))
    rows = copied(binary.plain(column), binary.integers(numbers), binary.constant("ü", len(column)))
    expected = [
        [value, struct.pack(">q", number), "ü".encode()]
        for number, value in enumerate(found[skipped:])
    ]
    assert rows == expected


def test_documents_begin_with_their_version() -> None:
    assert copied(binary.jsonb(pa.array([b"{}", b"1"], pa.binary()))) == [[b"\x01{}"], [b"\x011"]]


def test_times_count_from_2000() -> None:
    micros = np.array([946_684_800_000_000, 946_684_799_999_999], np.int64)
    assert copied(binary.timestamps(micros)) == [[struct.pack(">q", 0)], [struct.pack(">q", -1)]]


def test_large_columns_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "_CHUNK_BYTES", 100)
    found = [b"x" * size for size in (0, 10, 300, 5, 90, 90, 1)]
    chunks = [bytes(each) for each in binary.chunks([binary.plain(pa.array(found, pa.binary()))])]
    assert len(chunks) > 5
    assert read(b"".join(chunks)) == [[each] for each in found]
