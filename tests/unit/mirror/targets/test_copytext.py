"""COPY's text says what the columns hold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.mirror.targets.copytext import copy_text

UNESCAPED = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}


def parsed(text: bytes) -> list[list[str | None]]:
    """COPY's text as PostgreSQL reads it."""
    rows = []
    for line in text.decode().split("\n")[:-1]:
        cells: list[str | None] = []
        for cell in line.split("\t"):
            if cell == "\\N":
                cells.append(None)
                continue
            found, at = "", 0
            while at < len(cell):
                if cell[at] == "\\":
                    at += 1
                    found += UNESCAPED[cell[at]]
                else:
                    found += cell[at]
                at += 1
            cells.append(found)
        rows.append(cells)
    return rows


TEXT = st.none() | st.text(
    st.sampled_from("ab\\\t\n\r'\"N.é😀") | st.characters(exclude_characters="\0", codec="utf-8")
)
ROWS = st.lists(st.tuples(TEXT, st.none() | st.integers(-5, 5), TEXT, st.none() | st.binary()))


@given(rows=ROWS)
def test_rows_come_out_as_they_went_in(rows: list[tuple[Any, ...]]) -> None:
    types = [pa.string(), pa.int64(), pa.string(), pa.binary()]
    arrays = [pa.array([row[at] for row in rows], type_) for at, type_ in enumerate(types)]
    wanted = [
        [
            one,
            None if number is None else str(number),
            other,
            None if raw is None else "\\x" + raw.hex(),
        ]
        for one, number, other, raw in rows
    ]
    assert parsed(bytes(copy_text(arrays))) == wanted


def test_a_slice_is_what_it_shows() -> None:
    array = pa.array(["skipped", "a\tb", None, "c"]).slice(1)
    assert bytes(copy_text([array])) == b"a\\tb\n\\N\nc\n"
