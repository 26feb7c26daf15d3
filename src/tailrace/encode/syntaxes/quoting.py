"""Quotes and backslashes in PostgreSQL's text of arrays and hstore, over whole columns.

A backslash takes the next byte as it is; a quote that is not taken so opens or closes a string. In
every value quotes are balanced, so one running count serves the whole column.
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
    """What each byte of a column is."""

    quotes: NDArray[np.bool_]
    """Quotes that open or close a string."""
    inside: NDArray[np.bool_]
    """Bytes of strings, with the opening quote."""
    escapes: NDArray[np.bool_]
    """Backslashes that stand for nothing themselves."""

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Bytes that belong to values: no quotes, no escapes."""
        return ~(self.quotes | self.escapes)


def quoting(data: NDArray[np.uint8]) -> Quoting:
    """Tell strings from what is around them."""
    escapes = _escapes(data)
    quotes = data == _QUOTE
    quotes[1:] &= ~escapes[:-1]
    inside = (np.cumsum(quotes, dtype=np.uint32) & 1).astype(bool)
    return Quoting(quotes, inside, escapes)


def _escapes(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Every other backslash of a run of them, from its first on."""
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
    kept: NDArray[np.bool_],
    begins: NDArray[np.integer],
    ends: NDArray[np.integer],
    nulls: NDArray[np.bool_],
) -> pa.BinaryArray:
    """The kept bytes between each begin and end as a column. Nothing kept lies between spans."""
    before = columns.starts_of(kept)
    starts = np.append(before[begins], before[ends[-1]] if len(ends) else np.int32(0))
    bits = columns.bitmap(~nulls) if nulls.any() else None
    return columns.tidy(columns.column(data[kept], starts, bits))
