"""Rows are found between their message headers, whatever bytes the headers contain."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.snapshot.copy import cut
from tailrace.snapshot.lines import Lines, message_edges

LINES = st.binary(max_size=30).map(lambda each: each.replace(b"\n", b"") + b"\n")
# Sizes whose lengths have the byte of a newline, or two, or a tab's, or just not.
SIZES = [1, 2, 5, 6, 7, 262, 261, 2556, 2555, 2566, 2811, 65536 + 6, 0xA0000 - 4, 0xA0A0A - 4]
ROWS = LINES | st.sampled_from(SIZES[:-3]).map(lambda size: b"x" * (size - 1) + b"\n")


def row(line: bytes) -> bytes:
    return b"d" + (len(line) + 4).to_bytes(4, "big") + line


def walked(data: bytes) -> list[int]:
    """The reference: one message at a time."""
    edges = [0]
    while True:
        begin = edges[-1]
        end = begin + 1 + int.from_bytes(data[begin + 1 : begin + 5], "big")
        line = data[begin + 5 : end]
        whole = line and end <= len(data)
        if data[begin : begin + 1] != b"d" or not whole or line.index(b"\n") + 1 != len(line):
            return edges
        edges.append(end)


def found(data: bytes) -> list[int]:
    return [*map(int, message_edges(np.frombuffer(data, np.uint8)))]


@given(st.lists(ROWS, max_size=20), st.sampled_from([b"", b"c\0\0\0\4", b"N\0\0\0\7a\n\n"]))
def test_every_row_is_found(lines: list[bytes], behind: bytes) -> None:
    data = b"".join(map(row, lines)) + behind
    assert found(data) == walked(data)
    assert len(found(data)) == len(lines) + 1


@pytest.mark.parametrize("size", [*SIZES, 0xA000000 - 4])
def test_newlines_in_lengths(size: int) -> None:
    lines = [b"x" * (size - 1) + b"\n"] * (3 if size < 1 << 20 else 1)
    data = b"".join(map(row, [b"\n", *lines, b"12345\n", b"\n"]))
    assert found(data) == walked(data)
    assert len(found(data)) == len(lines) + 4


@given(st.lists(ROWS, min_size=1, max_size=5), st.data())
def test_an_incomplete_row_is_left(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(map(row, lines))
    part = whole[: data.draw(st.integers(0, len(whole)))]
    assert found(part) == walked(part)


@given(st.lists(ROWS | st.binary(max_size=12), max_size=8), st.booleans())
@example([b"\n\n"], True)
@example([b"a\nb\nc\n"], True)
def test_nothing_else_is_taken_for_a_row(parts: list[bytes], framing: bool) -> None:
    data = b"".join(row(part) if framing else part for part in parts)
    edges = found(data)
    for begin, end in pairwise(edges):
        assert data[begin : begin + 1] == b"d"
        assert begin + 1 + int.from_bytes(data[begin + 1 : begin + 5], "big") == end
        assert data[end - 1 : end] == b"\n"


def apart(lines: list[bytes], gap: bytes) -> Lines:
    data = gap + gap.join(lines)
    ends = np.cumsum([len(line) + len(gap) for line in lines])
    return Lines(np.frombuffer(data, np.uint8), ends - [len(line) for line in lines], ends)


@given(st.lists(LINES, min_size=1), st.sampled_from([b"", b"12345"]))
def test_text(lines: list[bytes], gap: bytes) -> None:
    assert bytes(apart(lines, gap).text()) == b"".join(lines)
    assert bytes(Lines.of(bytearray(b"".join(lines)), [*map(len, lines)]).text()) == b"".join(lines)


@given(
    st.lists(st.lists(LINES, min_size=1, max_size=8), max_size=6),
    st.integers(1, 10),
    st.integers(1, 60),
)
def test_cut_by_rows_and_bytes(received: list[list[bytes]], max_rows: int, max_bytes: int) -> None:
    expected: list[list[bytes]] = []
    for line in (line for lines in received for line in lines):
        block = expected[-1] if expected else []
        if block and len(block) < max_rows and len(b"".join(block)) + len(line) <= max_bytes:
            block.append(line)
        else:
            expected.append([line])
    blocks = cut(
        [apart(lines, b"12345") for lines in received], max_rows=max_rows, max_bytes=max_bytes
    )
    assert [(rows, bytes(text)) for rows, text in blocks] == [
        (len(block), b"".join(block)) for block in expected
    ]
