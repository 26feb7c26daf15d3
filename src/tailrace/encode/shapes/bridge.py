"""Shape `bridge`: the row in `data`, with the fields of the PostgreSQL-to-NATS bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tailrace.change import Op
from tailrace.encode.shapes.content import content_fields
from tailrace.encode.syntaxes.syntax import Field
from tailrace.jetstream.names import MESSAGES, table_path, token

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.encode.facts import Facts
    from tailrace.encode.pieces import Pieces
    from tailrace.encode.shapes.shape import Part


class Bridge:
    """The bridge's messages. Arrays and hstore stay PostgreSQL's text."""

    native: ClassVar[bool] = False

    def ids(self, facts: Facts) -> pa.BinaryArray:
        """`{commit_lsn:x}-{table}-{operation}-{ordinal}`."""
        relation, op = facts.group.relation, facts.group.op
        if relation is None:
            name = f"{token(MESSAGES)}-{op.value}"
        else:
            name = f"{table_path(relation.namespace, relation.name)}-{op.value}"
        return facts.id_with(name.encode())

    def message(self, part: Part) -> Pieces:
        """The bridge's fields in its order; fields that Tailrace adds come last."""
        facts, group = part.facts, part.facts.group
        syntax, relation = facts.syntax, facts.group.relation
        fields = [
            Field("data", self._data(part)),
            Field("msg_id", syntax.text(part.ids)),
            Field("operation", (syntax.constant(group.op.value.upper()),)),
            Field("relation_id", (syntax.constant(relation and relation.oid),)),
            Field("subject", part.destination),
            Field("table", (syntax.constant(relation and relation.name),)),
            Field("schema", (syntax.constant(relation and relation.namespace),)),
            Field("lsn", facts.lsn_text),
            Field("xid", facts.xid),
            Field("timestamp", facts.committed_at),
        ]
        if group.after is not None and (unchanged := part.rows.unchanged(group.after)):
            fields.append(Field("unchanged", *unchanged))
        if group.op is Op.UPDATE and group.before is not None:
            fields.append(Field("old", part.rows.object(group.before)))
        if facts.annotated is not None:
            fields.append(Field("annotations", facts.annotations, facts.annotated))
        return syntax.object(fields)

    def _data(self, part: Part) -> Pieces:
        """The row. A DELETE names every column, as in the bridge: absent ones are null."""
        group, rows = part.facts.group, part.rows
        if group.op is Op.MESSAGE:
            return part.facts.syntax.object(content_fields(part.facts))
        if group.op is Op.DELETE and group.before is not None:
            return rows.object(group.before, absent_as_null=True)
        return part.facts.syntax.object([]) if group.after is None else rows.object(group.after)
