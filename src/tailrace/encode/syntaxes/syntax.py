"""What an encoding can do: the seam between shapes, which say what a message holds, and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.decode.types import Type
    from tailrace.encode.pieces import Pieces
    from tailrace.encode.syntaxes.arrays import Marks


@dataclass(frozen=True, slots=True)
class Field:
    """A member of an object. It is left out of the rows where `present` is false."""

    name: str
    value: Pieces
    present: NDArray[np.bool_] | None = None


class Syntax(Protocol):
    """An encoding. All text is UTF-8 already; nulls in columns become the encoding's null."""

    null: bytes

    def constant(self, value: object) -> bytes:
        """A Python value: None, bool, int, str, lists and dicts of these."""

    def text(self, values: pa.BinaryArray) -> Pieces:
        """Strings."""

    def plain(self, values: pa.BinaryArray) -> Pieces:
        """Strings of printable ASCII, without quotes and backslashes."""

    def integers(self, values: NDArray[np.integer]) -> Pieces:
        """Integers."""

    def document(self, values: pa.BinaryArray) -> Pieces:
        """JSON text as a value."""

    def cells(self, type_: Type, values: pa.BinaryArray, *, native: bool) -> Pieces:
        """PostgreSQL's text of values. `native` opens arrays, hstore and vectors."""

    def brackets(self, marks: Marks) -> pa.BinaryArray:
        """What stands at each bracket and delimiter of arrays, behind the element before it."""

    def pair_marks(self, keys: NDArray[np.bool_], last: NDArray[np.bool_]) -> pa.BinaryArray:
        """What stands behind each key and each value, of which some are the last of their row."""

    def mapping(self, members: pa.BinaryArray, counts: NDArray[np.integer]) -> Pieces:
        """Objects of members that are joined already, so many a row."""

    def object(self, fields: Sequence[Field]) -> Pieces:
        """Objects, member by member."""
