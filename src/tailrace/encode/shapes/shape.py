"""The seam between the encoder and a shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.encode.facts import Facts
    from tailrace.encode.pieces import Pieces
    from tailrace.encode.rows import Rows


@dataclass(frozen=True)
class Part:
    """A group of changes, as a shape reads it. `destination` is a string, as pieces."""

    facts: Facts
    rows: Rows
    destination: Pieces
    ids: pa.BinaryArray


class Shape(Protocol):
    """A layout of messages."""

    native: ClassVar[bool]
    """Whether arrays, hstore and vectors become arrays and objects, or stay PostgreSQL's text."""

    def ids(self, facts: Facts) -> pa.BinaryArray:
        """The id of each change, printable ASCII."""

    def message(self, part: Part) -> Pieces:
        """The payload."""
