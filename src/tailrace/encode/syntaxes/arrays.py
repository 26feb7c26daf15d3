"""Array cells: `{{1,NULL},{"a,b",4}}` → nested arrays, over the bytes of a whole column.

Braces and delimiters outside of strings cut the column into elements. Those become a column of
their own, go through their own type's encoder, and are put back between the brackets. An array
with explicit bounds, `[0:1]={1,2}`, has no equal elsewhere and stays text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns
from tailrace.decode.types import Kind, Type
from tailrace.encode.pieces import Pieces, join
from tailrace.encode.syntaxes.quoting import quoting, spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.encode.syntaxes.syntax import Syntax

_NULL = np.frombuffer(b"NULL", np.uint8)
_FLOATS = Type(kind=Kind.ARRAY, element=Type(kind=Kind.FLOAT8))


@dataclass(frozen=True, slots=True)
class Marks:
    """The structure of a column of arrays: a mark for each bracket and delimiter, in order."""

    opens: NDArray[np.bool_]
    closes: NDArray[np.bool_]
    rows: NDArray[np.int64]
    """The first mark of each value, and the number of marks."""
    follows: NDArray[np.bool_]
    """Whether an element stands right before the mark."""
    elements: pa.BinaryArray
    """The elements, unquoted, in order."""

    def counts(self) -> NDArray[np.int64]:
        """How many members each opened array has. Counts delimiters depth by depth: at most six."""
        depth = np.cumsum(self.opens.astype(np.int64) - self.closes) + self.closes
        delimiters = ~(self.opens | self.closes)
        found = np.zeros(len(self.opens), np.int64)
        for level in range(1, int(depth.max(initial=0)) + 1):
            opened = np.flatnonzero(self.opens & (depth == level))
            between = np.flatnonzero(delimiters & (depth == level))
            owner = np.searchsorted(opened, between) - 1
            found[opened] = np.bincount(owner, minlength=len(opened)) + 1
        empty = self.opens[:-1] & self.closes[1:] & ~self.follows[1:]
        found[:-1][empty] = 0
        return found[self.opens]

    @property
    def balanced(self) -> bool:
        """Whether every value is one array and nothing else: a type's name may mislead."""
        depth = np.cumsum(self.opens.astype(np.int64) - self.closes)
        last = self.rows[1:] - 1
        whole = np.zeros(len(depth), bool)
        whole[last] = True
        return bool((np.diff(self.rows) > 1).all() and ((depth == 0) == whole).all())


def parse(values: pa.BinaryArray, brackets: bytes, delimiter: str) -> Marks:
    """Find the structure. Every value begins with a bracket."""
    data, starts = columns.content(values), columns.offsets(values)
    found = quoting(data)
    opens, closes = data == brackets[0], data == brackets[1]
    marks = opens | closes | (data == ord(delimiter))
    marks &= ~found.inside
    places = np.flatnonzero(marks)
    before = np.append(0, places[:-1] + 1)
    follows = (places > before) & ~opens[places]
    begins, ends = before[follows], places[follows]
    kept = found.kept & ~marks
    return Marks(
        opens=opens[places],
        closes=closes[places],
        rows=np.searchsorted(places, starts),
        follows=follows,
        elements=spans(data, kept, begins, ends, _nulls(data, begins, ends)),
    )


def _nulls(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which elements are NULL: the bare word. The string is in quotes."""
    nulls: NDArray[np.bool_] = ends - begins == len(_NULL)
    at = begins[nulls]
    nulls[nulls] = (data[at[:, None] + np.arange(len(_NULL))] == _NULL).all(axis=1)
    return nulls


def cells(type_: Type, values: pa.BinaryArray, syntax: Syntax, brackets: bytes = b"{}") -> Pieces:
    """Nested arrays; other text as strings."""
    starts = columns.offsets(values)
    given = np.diff(starts) > 0
    given[given] = columns.content(values)[starts[:-1][given]] == brackets[0]
    chosen = pa.array(given)
    nested = _nested(type_, values.filter(chosen), syntax, brackets) if given.any() else None
    if nested is None:
        return syntax.text(values)
    if given.all():
        return (nested,)
    rest = join(syntax.text(columns.blanked(values, ~given)), null=syntax.null)
    return (pc.replace_with_mask(rest, chosen, nested),)


def _nested(
    type_: Type, values: pa.BinaryArray, syntax: Syntax, brackets: bytes
) -> pa.BinaryArray | None:
    assert type_.element is not None
    marks = parse(values, brackets, type_.element.delimiter)
    if not marks.balanced:
        return None
    encoded = join(syntax.cells(type_.element, marks.elements, native=True), null=syntax.null)
    whole = join([_placed(encoded, marks.follows), syntax.brackets(marks)])
    return columns.column(columns.content(whole), columns.offsets(whole)[marks.rows])


def _placed(values: pa.BinaryArray, mask: NDArray[np.bool_]) -> pa.BinaryArray:
    """Values at the true places of a mask, nothing elsewhere."""
    lengths = np.zeros(len(mask), np.int64)
    lengths[mask] = np.diff(columns.offsets(values))
    return columns.column(columns.content(values), columns.starts_of(lengths))


def vectors(values: pa.BinaryArray, syntax: Syntax) -> Pieces:
    """pgvector's `[1,-0.5]` as arrays of floats."""
    return cells(_FLOATS, values, syntax, b"[]")
