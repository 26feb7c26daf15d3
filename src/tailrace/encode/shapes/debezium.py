"""Shape `debezium`: the envelope of Debezium's PostgreSQL connector, without the Connect schema.

The shape differs where Debezium depends on the time of processing: `ts_ms` is the commit time, so
the same change always has the same bytes. `docs/reference/shapes.md` lists every difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tailrace import __version__
from tailrace.change import Op
from tailrace.encode.pieces import join
from tailrace.encode.shapes.content import content_base64, prefix
from tailrace.encode.syntaxes.syntax import Field

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.decode.group import Image
    from tailrace.encode.facts import Facts
    from tailrace.encode.pieces import Pieces
    from tailrace.encode.shapes.shape import Part

UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's placeholder for an unchanged large value."""

_OPS = {
    Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.TRUNCATE: "t", Op.MESSAGE: "m", Op.READ: "r",
}  # fmt: skip


class Debezium:
    """Debezium's envelope."""

    native: ClassVar[bool] = True

    def ids(self, facts: Facts) -> pa.BinaryArray:
        """The event id."""
        return facts.ids

    def message(self, part: Part) -> Pieces:
        """The envelope; a logical message has `message` instead of row images."""
        facts, group = part.facts, part.facts.group
        syntax = facts.syntax
        images = [
            Field("before", _image(part, group.before)),
            Field("after", _image(part, group.after)),
        ]
        message = [Field("message", _message(facts))] if group.op is Op.MESSAGE else []
        return syntax.object(
            [
                *([] if message else images),
                Field("source", _source(facts)),
                Field("op", (syntax.constant(_OPS[group.op]),)),
                Field("ts_ms", facts.committed(1_000)),
                Field("ts_us", facts.committed(1_000_000)),
                Field("ts_ns", facts.committed(1_000_000_000)),
                Field("transaction", (syntax.null,)),
                *message,
            ]
        )


def _image(part: Part, image: Image | None) -> Pieces:
    syntax = part.facts.syntax
    if image is None:
        return (syntax.null,)
    return part.rows.object(image, placeholder=syntax.constant(UNAVAILABLE))


def _message(facts: Facts) -> Pieces:
    return facts.syntax.object(
        [Field("prefix", prefix(facts)), Field("content", content_base64(facts))]
    )


def _source(facts: Facts) -> Pieces:
    syntax, group, origin = facts.syntax, facts.group, facts.origin
    relation = group.relation
    return syntax.object(
        [
            Field("version", (syntax.constant(__version__),)),
            Field("connector", (syntax.constant("postgresql"),)),
            Field("name", (syntax.constant(origin.slot or origin.database),)),
            Field("snapshot", (syntax.constant("true" if group.op is Op.READ else "false"),)),
            Field("db", (syntax.constant(origin.database),)),
            Field("schema", (syntax.constant(relation.namespace if relation else ""),)),
            Field("table", (syntax.constant(relation.name if relation else ""),)),
            Field("ts_ms", facts.committed(1_000)),
            Field("ts_us", facts.committed(1_000_000)),
            Field("ts_ns", facts.committed(1_000_000_000)),
            Field("txId", facts.xid),
            Field("lsn", facts.lsn_number),
            Field("sequence", syntax.text(_sequence(facts))),
            Field("xmin", (syntax.null,)),
        ]
    )


def _sequence(facts: Facts) -> pa.BinaryArray:
    """A JSON array in a string, as in Debezium: the commit's LSN, then the ordinal."""
    return join([b'["', facts.lsn_digits, b'","', facts.ordinal_text, b'"]'])
