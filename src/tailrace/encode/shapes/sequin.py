"""Shape `sequin`: the row in `record`, the old values of changed columns in `changes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pyarrow.compute as pc

from tailrace.change import Op
from tailrace.decode import columns
from tailrace.encode.pieces import join
from tailrace.encode.shapes.content import content_fields
from tailrace.encode.syntaxes import binary
from tailrace.encode.syntaxes.syntax import Field

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.decode.group import Cells
    from tailrace.encode.facts import Facts
    from tailrace.encode.pieces import Pieces
    from tailrace.encode.shapes.shape import Part


class Sequin:
    """Sequin's messages."""

    native: ClassVar[bool] = True

    def ids(self, facts: Facts) -> pa.BinaryArray:
        """The event id."""
        return facts.ids

    def message(self, part: Part) -> Pieces:
        """Sequin's message; the record of a delete is its old row."""
        facts, group = part.facts, part.facts.group
        syntax = facts.syntax
        return syntax.object(
            [
                Field("record", _record(part)),
                Field("changes", _changes(part)),
                Field("action", (syntax.constant(group.op.value),)),
                Field("metadata", _metadata(part)),
            ]
        )


def _record(part: Part) -> Pieces:
    group, syntax = part.facts.group, part.facts.syntax
    if group.op is Op.MESSAGE:
        return syntax.object(content_fields(part.facts))
    image = group.before if group.after is None else group.after
    return syntax.object([]) if image is None else part.rows.object(image)


def _changes(part: Part) -> Pieces:
    """The old values of columns that differ; null if PostgreSQL sent no old row."""
    group, rows = part.facts.group, part.rows
    if group.op is not Op.UPDATE or group.before is None or group.after is None:
        return (part.facts.syntax.null,)
    fields = []
    for (column, type_, old), new in zip(rows.columns(group.before), group.after, strict=True):
        if old is not None and new is not None:
            differs = _differs(old, new)
            if differs.any():
                fields.append(Field(column.name, rows.cells(column, type_, old.values), differs))
    return part.facts.syntax.object(fields)


def _differs(old: Cells, new: Cells) -> NDArray[np.bool_]:
    """Where both values are known and differ; NULL equals only NULL."""
    unequal = pc.fill_null(pc.not_equal(old.values, new.values), False)
    differs: NDArray[np.bool_] = unequal.to_numpy(zero_copy_only=False)
    differs = differs | (columns.valid(old.values) != columns.valid(new.values))
    for mask in (old.unchanged, new.unchanged):
        if mask is not None:
            differs &= ~mask
    return differs


def _metadata(part: Part) -> Pieces:
    facts, syntax, relation = part.facts, part.facts.syntax, part.facts.group.relation
    fields = [
        Field("table_schema", (syntax.constant(relation and relation.namespace),)),
        Field("table_name", (syntax.constant(relation and relation.name),)),
        Field("table_oid", (syntax.constant(relation and relation.oid),)),
        Field("database_name", (syntax.constant(facts.origin.database),)),
        Field("commit_timestamp", facts.committed_at),
        Field("commit_lsn", facts.lsn_number),
        Field("commit_idx", facts.ordinal),
        Field("transaction_annotations", facts.annotations),
        Field("idempotency_key", syntax.plain(_idempotency_keys(facts))),
    ]
    after = facts.group.after
    if after is not None and (unchanged := part.rows.unchanged(after)):
        fields.append(Field("unchanged", *unchanged))
    return syntax.object(fields)


def _idempotency_keys(facts: Facts) -> pa.BinaryArray:
    """Base64 of `commit_lsn:commit_idx`, both in decimal."""
    return binary.base64(join([facts.lsn_digits, b":", facts.ordinal_text]))
