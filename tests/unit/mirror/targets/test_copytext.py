"""COPY's text holds the values of the columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.mirror.targets.copytext import copy_text

UNESCAPED = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}


def parse(text: bytes) -> list[list[str | None]]:
    """Parse COPY's text as PostgreSQL does."""
    rows = []
    for line in text.decode().split("\n")[:-1]:
        cells: list[str | None] = []
        for cell in line.split("\t"):
            if cell == "\\N":
                cells.append(None)
                continue
            value, at = "", 0
            while at < len(cell):
                if cell[at] == "\\":
                    at += 1
                    value += UNESCAPED[cell[at]]
                else:
                    value += cell[at]
                at += 1
            cells.append(value)
        rows.append(cells)
    return rows


TEXT = st.none() | st.text(
    st.sampled_from("ab\\\t\n\r'\"N.é😀") | st.characters(exclude_characters="\0", codec="utf-8")
)
ROWS = st.lists(st.tuples(TEXT, st.none() | st.integers(-5, 5), TEXT, st.none() | st.binary()))


@given(rows=ROWS)
def test_postgresql_reads_back_the_same_rows(rows: list[tuple[Any, ...]]) -> None:
    types = [pa.string(), pa.int64(), pa.string(), pa.binary()]
    arrays = [pa.array([row[at] for row in rows], type_) for at, type_ in enumerate(types)]
    expected = [
        [
            one,
            None if number is None else str(number),
            other,
            None if raw is None else "\\x" + raw.hex(),
        ]
        for one, number, other, raw in rows
    ]
    assert parse(bytes(copy_text(arrays))) == expected


def test_slice_of_an_array_has_only_its_own_rows() -> None:
    array = pa.array(["skipped", "a\tb", None, "c"]).slice(1)
    assert bytes(copy_text([array])) == b"a\\tb\n\\N\nc\n"
