"""Lines as COPY writes them are the values that were written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import MalformedError
from tailrace.snapshot.cells import cells
from tailrace.snapshot.lines import Lines

Row = tuple[bytes | None, ...]

ESCAPES = {
    "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
}  # fmt: skip
TEXT = st.text(st.sampled_from("\\Nnt.x\n\r\t\b\f\v\"'é\x01") | st.characters(codec="utf-8"))
CELL = st.none() | TEXT.map(lambda text: text.replace("\0", "").encode())


def written(row: Row) -> bytes:
    def text(value: bytes) -> str:
        return "".join(ESCAPES.get(each, each) for each in value.decode())

    return "\t".join("\\N" if each is None else text(each) for each in row).encode() + b"\n"


def lines(rows: list[Row], gap: bytes = b"\0\0\0\0\0") -> Lines:
    texts = [gap + written(row) for row in rows]
    ends = np.cumsum([*map(len, texts)])
    begins = ends - [len(text) - len(gap) for text in texts]
    return Lines(np.frombuffer(b"".join(texts), np.uint8), begins, ends)


@given(st.integers(1, 5).flatmap(lambda count: st.lists(st.tuples(*[CELL] * count), min_size=1)))
def test_cells_are_what_was_written(rows: list[Row]) -> None:
    for gap in (b"", b"\0\0\0\0\0"):
        image = cells(lines(rows, gap), len(rows[0]))
        columns = [each.values for each in image if each is not None]
        for values in columns:
            values.validate(full=True)
        assert [*zip(*(values.to_pylist() for values in columns), strict=True)] == rows


def test_rows_without_columns() -> None:
    assert cells(lines([(), ()]), 0) == ()


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_columns(count: int) -> None:
    with pytest.raises(MalformedError, match="columns"):
        cells(lines([(b"a", b"b"), (b"c", b"d")]), count)


def test_columns_that_only_add_up() -> None:
    with pytest.raises(MalformedError, match="columns"):
        cells(lines([(b"a",), (b"b", b"c", b"d")]), 2)
