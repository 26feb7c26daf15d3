"""Columns in COPY's binary format, joined in Arrow: no Python code runs per row.

A row is the number of its fields, then each field as its length and its bytes; the length of NULL
is -1. Unlike text, nothing needs to be escaped. The type of a column must be exactly the one that
its function here is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Field = tuple[pa.BinaryArray, ...]
    """Pieces of a field of each row, its length included."""

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
_CHUNK_BYTES = 4 << 20
_JSONB_VERSION = b"\x01"
_EPOCH_US = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: timestamps count from there."""


def integers(values: NDArray[np.integer]) -> Field:
    """For a column of type `bigint`."""
    fields = np.empty((len(values), 12), np.uint8)
    fields[:, :4] = np.frombuffer((8).to_bytes(4, "big"), np.uint8)
    fields[:, 4:] = values.astype(">i8").view(np.uint8).reshape(-1, 8)
    return (columns.fixed(fields),)


def timestamps(micros: NDArray[np.int64]) -> Field:
    """For a column of type `timestamptz`; microseconds since 1970."""
    return integers(micros - _EPOCH_US)


def plain(values: pa.BinaryArray) -> Field:
    """For columns of type `text`, `json` and `bytea`."""
    lengths = np.diff(columns.offsets(columns.tidy(values))).astype(np.int32)
    if values.null_count:
        lengths[~columns.valid(values)] = -1
        values = pc.fill_null(values, columns.constant(b""))
    return _lengths(lengths), values


def jsonb(values: pa.BinaryArray) -> Field:
    """For a column of type `jsonb`, without nulls."""
    lengths = np.diff(columns.offsets(values)).astype(np.int32) + 1
    return _lengths(lengths, _JSONB_VERSION), values


def constant(value: str, rows: int) -> Field:
    """The same text in each row."""
    data = value.encode()
    return (pa.repeat(columns.constant(len(data).to_bytes(4, "big") + data), rows),)


def chunks(fields: Sequence[Field]) -> Iterator[memoryview | bytes]:
    """The data of a COPY, in pieces that leave the client while it joins the next one."""
    pieces = [piece for field in fields for piece in field]
    rows = len(pieces[0])
    yield HEADER
    for start, count in _cut(pieces, rows):
        yield _joined([piece.slice(start, count) for piece in pieces], len(fields))
    yield TRAILER


def _joined(pieces: Sequence[pa.BinaryArray], fields: int) -> memoryview:
    start = columns.constant(fields.to_bytes(2, "big"))
    rows = pc.binary_join_element_wise(start, *pieces, columns.constant(b""))
    return columns.content(rows).data


def _cut(pieces: Sequence[pa.BinaryArray], rows: int) -> Iterator[tuple[int, int]]:
    """Runs of rows of about `_CHUNK_BYTES`: first row, number of rows."""
    sizes = np.zeros(rows, np.int64)
    for piece in pieces:
        sizes += np.diff(columns.offsets(piece))
    ends = np.cumsum(sizes)
    at = 0
    while at < rows:
        sent = int(ends[at - 1]) if at else 0
        end = max(at + 1, int(np.searchsorted(ends, sent + _CHUNK_BYTES, side="right")))
        yield at, end - at
        at = end


def _lengths(lengths: NDArray[np.int32], prefix: bytes = b"") -> pa.BinaryArray:
    """Lengths of fields, each followed by the bytes that all fields begin with."""
    heads = np.empty((len(lengths), 4 + len(prefix)), np.uint8)
    heads[:, :4] = lengths.astype(">i4").view(np.uint8).reshape(-1, 4)
    heads[:, 4:] = np.frombuffer(prefix, np.uint8)
    return columns.fixed(heads)
