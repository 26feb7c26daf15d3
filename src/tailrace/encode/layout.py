"""The seam between the encoder, which knows where messages go, and their content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tailrace.encode.facts import Facts
from tailrace.encode.pieces import join
from tailrace.encode.rows import Rows
from tailrace.encode.shapes.shape import Part

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.decode.group import Group
    from tailrace.encode.facts import Origin
    from tailrace.encode.shapes.shape import Shape
    from tailrace.encode.syntaxes.syntax import Syntax


class Layout(Protocol):
    """Turns changes into ids and payloads."""

    def messages(
        self, group: Group, origin: Origin, destination: str | pa.BinaryArray
    ) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """The id and the payload of each change."""


@dataclass(frozen=True)
class Documents:
    """A shape in an encoding whose messages name what they hold."""

    shape: Shape
    syntax: Syntax

    def messages(
        self, group: Group, origin: Origin, destination: str | pa.BinaryArray
    ) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Ids and documents."""
        facts = Facts(group, origin, self.syntax)
        rows = Rows(group, self.syntax, self.shape.native)
        ids = self.shape.ids(facts)
        named = (
            (self.syntax.constant(destination),)
            if isinstance(destination, str)
            else self.syntax.text(destination)
        )
        part = Part(facts, rows, named, ids)
        return ids, join(self.shape.message(part), null=self.syntax.null)
