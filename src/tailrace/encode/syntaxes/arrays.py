"""Array cells: PostgreSQL's text `{{1,NULL},{"a,b",4}}` → nested arrays, for whole columns.

Brackets and delimiters outside of strings split the bytes of the column into elements. The elements
of all rows become one column, are encoded by the encoder of their type, and are joined again with
the syntax's brackets. Parsing works on the bytes of the column with numpy: a Python parser per cell
would dominate the encoding.

Example, a column of two cells and JSON:

    bytes      {1,NULL}{}
    marks      { , } { }        each bracket and delimiter outside of strings
    follows    - 1 N - -        an element precedes the second mark (1) and the third (NULL)
    elements   1, null          encoded to `1` and `null`
    result     [1,null] and []

An array with explicit bounds, `[0:1]={1,2}`, has no equivalent and stays text.
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
    """The structure of a column of arrays: its brackets and delimiters (marks), in order."""

    opens: NDArray[np.bool_]
    closes: NDArray[np.bool_]
    rows: NDArray[np.int64]
    """The first mark of each value, and the number of marks."""
    follows: NDArray[np.bool_]
    """Whether an element precedes the mark."""
    elements: pa.BinaryArray
    """The elements, unquoted, in order."""

    def counts(self) -> NDArray[np.int64]:
        """The number of members of each array, in the order of the opening brackets.

        Delimiters are counted depth by depth; PostgreSQL allows six dimensions.
        """
        depth = np.cumsum(self.opens.astype(np.int64) - self.closes) + self.closes
        delimiters = ~(self.opens | self.closes)
        counts = np.zeros(len(self.opens), np.int64)
        for level in range(1, int(depth.max(initial=0)) + 1):
            opened = np.flatnonzero(self.opens & (depth == level))
            between = np.flatnonzero(delimiters & (depth == level))
            owner = np.searchsorted(opened, between) - 1
            counts[opened] = np.bincount(owner, minlength=len(opened)) + 1
        empty = self.opens[:-1] & self.closes[1:] & ~self.follows[1:]
        counts[:-1][empty] = 0
        return counts[self.opens]

    @property
    def balanced(self) -> bool:
        """Whether every value is exactly one array: a user's type may have an array's name."""
        depth = np.cumsum(self.opens.astype(np.int64) - self.closes)
        last = self.rows[1:] - 1
        whole = np.zeros(len(depth), bool)
        whole[last] = True
        return bool((np.diff(self.rows) > 1).all() and ((depth == 0) == whole).all())


def parse(values: pa.BinaryArray, brackets: bytes, delimiter: str) -> Marks:
    """Find the structure of a column in which every value begins with a bracket."""
    data, starts = columns.content(values), columns.offsets(values)
    quotes = quoting(data)
    opens, closes = data == brackets[0], data == brackets[1]
    marks = opens | closes | (data == ord(delimiter))
    marks &= ~quotes.inside
    places = np.flatnonzero(marks)
    before = np.append(0, places[:-1] + 1)
    follows = (places > before) & ~opens[places]
    begins, ends = before[follows], places[follows]
    content = quotes.content & ~marks
    return Marks(
        opens=opens[places],
        closes=closes[places],
        rows=np.searchsorted(places, starts),
        follows=follows,
        elements=spans(data, content, begins, ends, _nulls(data, begins, ends)),
    )


def _nulls(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which elements are the bare word NULL; the string "NULL" is in quotes."""
    nulls: NDArray[np.bool_] = ends - begins == len(_NULL)
    at = begins[nulls]
    nulls[nulls] = (data[at[:, None] + np.arange(len(_NULL))] == _NULL).all(axis=1)
    return nulls


def cells(type_: Type, values: pa.BinaryArray, syntax: Syntax, brackets: bytes = b"{}") -> Pieces:
    """Nested arrays; text that is not an array as strings."""
    starts = columns.offsets(values)
    is_array = np.diff(starts) > 0
    is_array[is_array] = columns.content(values)[starts[:-1][is_array]] == brackets[0]
    chosen = pa.array(is_array)
    nested = _nested(type_, values.filter(chosen), syntax, brackets) if is_array.any() else None
    if nested is None:
        return syntax.text(values)
    if is_array.all():
        return (nested,)
    rest = join(syntax.text(columns.blanked(values, ~is_array)), null=syntax.null)
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
    """Values where the mask is true, empty elsewhere."""
    lengths = np.zeros(len(mask), np.int64)
    lengths[mask] = np.diff(columns.offsets(values))
    return columns.column(columns.content(values), columns.starts_of(lengths))


def vectors(values: pa.BinaryArray, syntax: Syntax) -> Pieces:
    """pgvector's `[1,-0.5]` as arrays of floats."""
    return cells(_FLOATS, values, syntax, b"[]")
