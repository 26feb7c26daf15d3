"""Shape `plain`: every fact of a change under its own name."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tailrace.change import Op
from tailrace.encode.shapes.content import content_fields
from tailrace.encode.syntaxes.syntax import Field

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.decode.group import Image
    from tailrace.encode.facts import Facts
    from tailrace.encode.pieces import Pieces
    from tailrace.encode.shapes.shape import Part


class Plain:
    """Position, row images, and which values are unknown."""

    native: ClassVar[bool] = True

    def ids(self, facts: Facts) -> pa.BinaryArray:
        """The event id."""
        return facts.ids

    def message(self, part: Part) -> Pieces:
        """The same members in every message, null where they do not apply.

        Logical messages also have `message`.
        """
        facts, group, rows = part.facts, part.facts.group, part.rows
        syntax, relation = facts.syntax, group.relation
        null: Pieces = (syntax.null,)
        fields = [
            Field("id", syntax.plain(part.ids)),
            Field("op", (syntax.constant(group.op.value),)),
            Field("schema", (syntax.constant(relation and relation.namespace),)),
            Field("table", (syntax.constant(relation and relation.name),)),
            Field("lsn", facts.lsn_text),
            Field("ordinal", facts.ordinal),
            Field("xid", facts.xid),
            Field("committed_at", facts.committed_at),
            Field("key", null if relation is None else rows.key()),
            Field("before", _image(part, group.before)),
            Field("after", _image(part, group.after)),
            Field("unchanged", _unchanged(part)),
            Field("annotations", facts.annotations),
        ]
        if group.op is Op.MESSAGE:
            fields.append(Field("message", syntax.object(content_fields(facts))))
        return syntax.object(fields)


def _image(part: Part, image: Image | None) -> Pieces:
    return (part.facts.syntax.null,) if image is None else part.rows.object(image)


def _unchanged(part: Part) -> Pieces:
    unchanged = part.rows.unchanged(part.facts.group.after)
    return (part.facts.syntax.constant([]),) if unchanged is None else unchanged[0]
