r"""Quotes and backslashes in PostgreSQL's text of arrays and hstore, for whole columns.

A backslash escapes the next byte. A quote that is not escaped opens or closes a string. Quotes are
balanced in every value, so one running count over the bytes of the column tells which bytes are
inside a string:

    bytes     a , " b \ " c "
    quotes        x         x
    escapes           x
    inside        x x x x x         the opening quote counts, the closing one does not
    content   x x   x   x x         what belongs to values
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.decode import columns

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_QUOTE, _BACKSLASH = ord('"'), ord("\\")


@dataclass(frozen=True, slots=True)
class Quoting:
    """The role of each byte of a column."""

    quotes: NDArray[np.bool_]
    """Quotes that open or close a string."""
    inside: NDArray[np.bool_]
    """Bytes of strings, including the opening quote."""
    escapes: NDArray[np.bool_]
    """Backslashes that escape the next byte."""

    @property
    def content(self) -> NDArray[np.bool_]:
        """Bytes that belong to values: neither quotes nor escapes."""
        return ~(self.quotes | self.escapes)


def quoting(data: NDArray[np.uint8]) -> Quoting:
    """Find the strings of a column."""
    escapes = _escapes(data)
    quotes = data == _QUOTE
    quotes[1:] &= ~escapes[:-1]
    inside = (np.cumsum(quotes, dtype=np.uint32) & 1).astype(bool)
    return Quoting(quotes, inside, escapes)


def _escapes(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The first, third, … backslash of each run: the others are escaped themselves."""
    backslashes: NDArray[np.bool_] = data == _BACKSLASH
    places = np.flatnonzero(backslashes)
    if not len(places):
        return backslashes
    first = np.ones(len(places), bool)
    first[1:] = np.diff(places) > 1
    start = np.maximum.accumulate(np.where(first, places, 0))
    backslashes[places] = (places - start) % 2 == 0
    return backslashes


def spans(
    data: NDArray[np.uint8],
    content: NDArray[np.bool_],
    begins: NDArray[np.integer],
    ends: NDArray[np.integer],
    nulls: NDArray[np.bool_],
) -> pa.BinaryArray:
    """The content bytes between each begin and end as a column; there are none between spans."""
    before = columns.starts_of(content)
    starts = np.append(before[begins], before[ends[-1]] if len(ends) else np.int32(0))
    bits = columns.bitmap(~nulls) if nulls.any() else None
    return columns.tidy(columns.column(data[content], starts, bits))
