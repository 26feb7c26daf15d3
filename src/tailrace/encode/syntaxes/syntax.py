"""The protocol of an encoding: shapes say what a message contains, a syntax writes it as bytes."""

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
    """A member of an object, left out in rows where `present` is false."""

    name: str
    value: Pieces
    present: NDArray[np.bool_] | None = None


class Syntax(Protocol):
    """An encoding. All text is valid UTF-8; nulls in columns become the encoding's null."""

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
        """Values from PostgreSQL's text. `native` writes arrays, hstore and vectors as
        structures."""

    def brackets(self, marks: Marks) -> pa.BinaryArray:
        """The bytes to write at each bracket and delimiter of arrays, after the preceding
        element."""

    def pair_marks(self, keys: NDArray[np.bool_], last: NDArray[np.bool_]) -> pa.BinaryArray:
        """The bytes to write after each key and value of maps; `last` are the last values of a
        row."""

    def mapping(self, members: pa.BinaryArray, counts: NDArray[np.integer]) -> Pieces:
        """Objects from members that are already joined; `counts` are the members per row."""

    def object(self, fields: Sequence[Field]) -> Pieces:
        """Objects, member by member."""
