"""Shape `row`: the row alone, for sinks that store rows as documents.

An update that did not modify a large value does not carry it, unless the old row has it
(REPLICA IDENTITY FULL). Such a message is incomplete and says so: its first member has an empty
name, which no column of PostgreSQL can have, and lists the missing columns.

    {"id":7,"title":"x","body":"..."}       complete
    {"":["body"],"id":7,"title":"y"}        `body` was not modified, and is not known
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from tailrace.change import Op
from tailrace.decode.group import Cells
from tailrace.encode.pieces import where
from tailrace.encode.shapes.content import content_fields
from tailrace.encode.syntaxes.syntax import Field

if TYPE_CHECKING:
    from tailrace.decode.group import Image
    from tailrace.encode.facts import Facts
    from tailrace.encode.pieces import Pieces
    from tailrace.encode.shapes.shape import Part


class Row:
    """The new row, or what is known of the old one after a delete."""

    native: ClassVar[bool] = True

    def ids(self, facts: Facts) -> pa.BinaryArray:
        """The event id."""
        return facts.ids

    def message(self, part: Part) -> Pieces:
        """The columns as members; `{}` for TRUNCATE, prefix and content of a logical message."""
        group, syntax = part.facts.group, part.facts.syntax
        if group.op is Op.MESSAGE:
            return syntax.object(content_fields(part.facts))
        image = group.before if group.after is None else _completed(group.after, group.before)
        if not image:
            # All rows are the same constant, of which a payload needs a column.
            empty = pa.scalar(syntax.constant({}), pa.binary())
            return (pa.repeat(empty, len(group)),)
        missing = part.rows.unchanged(image)
        first = [] if missing is None else [Field("", *missing)]
        return syntax.object([*first, *part.rows.fields(image)])


def _completed(after: Image, before: Image | None) -> Image:
    """The new row with unchanged values taken from the old row, where that has them."""
    if before is None:
        return after
    return tuple(_filled(new, old) for new, old in zip(after, before, strict=True))


def _filled(new: Cells | None, old: Cells | None) -> Cells | None:
    if new is None or old is None or new.unchanged is None or not new.unchanged.any():
        return new
    return Cells(where(new.unchanged, old.values, new.values), None)
