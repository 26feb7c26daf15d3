"""The table frame: one table's columns with their own types, and what happened to each row.

The extra columns have the names of Spark's change data feeds (`_change_type`, `_commit_version`),
so code for those can be used. The schema of a query is fixed when it starts. A schema change of the
table ends the query with an error that names the columns; a restarted query has the new columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailrace.change import Op
from tailrace.decode.typed import arrow_type, to_arrow
from tailrace.decode.types import resolve
from tailrace.errors import ConfigError, SchemaChangedError
from tailrace.log.reader import Log
from tailrace.pipeline.frames.changes import names_where, repeated
from tailrace.pipeline.frames.frame import arrow_schema, in_order, wanted_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tailrace.decode.group import Cells, Group, Image
    from tailrace.decode.types import Type
    from tailrace.pipeline.frames.frame import Slice
    from tailrace.pipeline.source.options import Options
    from tailrace.schema import Column, Relation, TypeName

_FACTS = [
    StructField("_change_type", StringType(), nullable=False),
    StructField("_commit_version", LongType(), nullable=False),
    StructField("_commit_ordinal", LongType(), nullable=False),
    StructField("_commit_timestamp", TimestampType(), nullable=False),
    StructField("_xid", LongType(), nullable=False),
    StructField("_unchanged", ArrayType(StringType())),
    StructField("_unrepresentable", ArrayType(StringType())),
]
_NAMES = {
    Op.INSERT: "insert",
    Op.DELETE: "delete",
    Op.TRUNCATE: "truncate",
    Op.READ: "insert",
}


class TableFrame:
    """One row per new row, and one per old row that PostgreSQL sent.

    `schema` is the query's: every group is compared with it, so any schema change is detected.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self.schema = schema
        self._arrow = arrow_schema(schema)
        facts = len(_FACTS) if options.facts else 0
        self._fields = list(self._arrow)[: len(schema) - facts]

    def batches(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, one batch per log entry."""
        entries = part.groups(
            wanted=wanted_by(self._options.tables),
            messages=lambda _: False,
        )
        for entry in entries:
            parts = [batch for group in entry for batch in self.rows(group)]
            yield in_order(parts, lsn="_commit_version", ordinal="_commit_ordinal")

    def rows(self, group: Group) -> Iterator[pa.RecordBatch]:
        """The rows of a group: old ones, then new ones."""
        self._check_schema(group)
        if group.op is Op.UPDATE:
            if group.before is not None:
                old = replace(group, after=None)
                yield self._batch(old, group.before, "update_preimage")
            assert group.after is not None
            yield self._batch(group, group.after, "update_postimage")
        else:
            assert group.relation is not None
            image = group.before if group.after is None else group.after
            empty: Image = tuple(None for _ in group.relation.columns)
            yield self._batch(group, image or empty, _NAMES[group.op])

    def _check_schema(self, group: Group) -> None:
        selected = self._options.columns
        present = {
            column.name: arrow_type(type_)
            for column, type_, _ in _columns(group)
            if not selected or column.name in selected
        }
        expected = {field.name: field.type for field in self._fields}
        if present != expected and not self._options.ignore_schema_change:
            assert group.relation is not None
            names = [name for name in present | expected if present.get(name) != expected.get(name)]
            raise SchemaChangedError(
                f"{group.relation.qualified_name} has changed: {', '.join(sorted(names))}"
            )

    def _batch(self, group: Group, image: Image, change_type: str) -> pa.RecordBatch:
        assert group.relation is not None
        values, lost = self._values(group, image)
        if not self._options.facts:
            _refuse_lost_values(group.relation, lost)
            return pa.RecordBatch.from_arrays(values, schema=self._arrow)
        count = len(group)
        facts = [
            repeated(change_type, count),
            pa.array(group.lsn.astype(np.int64)),
            pa.array(group.ordinal.astype(np.int64)),
            pa.array(group.committed_at).cast(pa.timestamp("us", "UTC")),
            pa.array(group.xid.astype(np.int64)),
            names_where(_unknown(group.relation, image), count),
            names_where(lost, count),
        ]
        return pa.RecordBatch.from_arrays([*values, *facts], schema=self._arrow)

    def _values(
        self, group: Group, image: Image
    ) -> tuple[list[pa.Array], dict[str, NDArray[np.bool_]]]:
        """The table's columns, and by name the rows whose value Spark's type cannot represent."""
        count = len(group)
        by_name = {column.name: (type_, cells) for column, type_, cells in _columns(group, image)}
        values: list[pa.Array] = []
        lost: dict[str, NDArray[np.bool_]] = {}
        for field in self._fields:
            type_, cells = by_name.get(field.name, (None, None))
            if type_ is None or cells is None:
                values.append(pa.nulls(count, field.type))
            elif arrow_type(type_) != field.type:
                values.append(pa.nulls(count, field.type))
                lost[field.name] = np.ones(count, np.bool_)
            else:
                column, unrepresentable = to_arrow(cells.values, type_)
                values.append(column)
                if unrepresentable.any():
                    lost[field.name] = unrepresentable
        return values, lost


def _refuse_lost_values(relation: Relation, lost: dict[str, NDArray[np.bool_]]) -> None:
    """Without the column `_unrepresentable`, such a value would look like NULL."""
    for name, rows in lost.items():
        raise ConfigError(
            f"column {name} of {relation.qualified_name} has {rows.sum():,} values"
            " that Spark's type cannot represent",
            hint='Remove .option("facts", "false"): then _unrepresentable lists the columns. Or'
            ' leave the column out with .option("columns", ...).',
        )


def _columns(
    group: Group, image: Image | None = None
) -> Iterator[tuple[Column, Type, Cells | None]]:
    """The columns of a group's table, with their types and their cells in an image."""
    assert group.relation is not None
    whole = image or (None,) * len(group.relation.columns)
    for column, cells in zip(group.relation.columns, whole, strict=True):
        yield column, resolve(column.type_oid, column.type_modifier, group.types), cells


def _unknown(relation: Relation, image: Image) -> dict[str, NDArray[np.bool_]]:
    """Where null is a value that PostgreSQL did not send: unchanged, or not in the old key."""
    masks = {}
    for column, cells in zip(relation.columns, image, strict=True):
        if cells is None:
            masks[column.name] = np.ones(1, np.bool_)
        elif cells.unchanged is not None:
            masks[column.name] = cells.unchanged
    return masks


def table_schema(options: Options) -> StructType:
    """The columns of a table, from PostgreSQL's catalog with a DSN, else from the end of the
    log."""
    relation, types = _current(options)
    selected = options.columns or tuple(column.name for column in relation.columns)
    known = {column.name: column for column in relation.columns}
    if missing := [name for name in selected if name not in known]:
        raise ConfigError(
            f"{relation.qualified_name} has no column {', '.join(missing)}",
            hint=f"It has {', '.join(known)}.",
        )
    fields = [
        StructField(
            column.name,
            from_arrow_type(
                arrow_type(resolve(column.type_oid, column.type_modifier, types)),
                prefer_timestamp_ntz=True,
            ),
        )
        for column in map(known.__getitem__, selected)
    ]
    return StructType([*fields, *(_FACTS if options.facts else ())])


def _current(options: Options) -> tuple[Relation, dict[int, TypeName]]:
    if options.dsn:
        from tailrace.pipeline.source.inline import read_relation  # noqa: PLC0415 - psycopg

        return read_relation(options)
    log = Log.open(options.log)
    relations: dict[int, Relation] = {}
    types: dict[int, TypeName] = {}
    for _, relation, used in log.relations(log.end().position):
        relations[relation.oid] = relation
        types |= used
    wanted = wanted_by(options.tables)
    matching = [relation for relation in relations.values() if wanted(relation)]
    if len(matching) == 1:
        return matching[0], types
    what = "the log has no change of it yet" if not matching else "it matches several tables"
    raise ConfigError(
        f"table {options.table!r}: {what}",
        hint="Write schema.table; the log has the columns of a table after its first change.",
    )
