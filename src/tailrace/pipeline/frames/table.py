"""The table frame: one table's columns with their own types, and what happened to each row.

The extra columns have the names Spark gives to change feeds, so code for those takes it as it is.
The schema of a query is fixed when it starts. A change of the table ends the query with an error
that says what changed; started again, it has the new columns.
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
from tailrace.pipeline.frames.frame import arrow_schema, groups, in_order, wanted_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tailrace.decode.group import Group, Image
    from tailrace.pipeline.options import Options
    from tailrace.position import Position
    from tailrace.schema import Relation, TypeName

_FACTS = [
    StructField("_change_type", StringType()),
    StructField("_commit_version", LongType()),
    StructField("_commit_ordinal", LongType()),
    StructField("_commit_timestamp", TimestampType()),
    StructField("_xid", LongType()),
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
    """A row for each new row, and one for each old row that PostgreSQL sent."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._relation, types = _current(options)
        self._types = {
            column.name: resolve(column.type_oid, column.type_modifier, types)
            for column in self._relation.columns
        }
        fields = [
            StructField(name, from_arrow_type(arrow_type(type_), prefer_timestamp_ntz=True))
            for name, type_ in self._types.items()
        ]
        self.schema = StructType([*fields, *_FACTS])

    def batches(self, log: Log, after: Position, upto: Position) -> Iterator[pa.RecordBatch]:
        """The rows of `(after, upto]`, a batch an entry."""
        schema = arrow_schema(self.schema)
        found = groups(
            log,
            after,
            upto,
            wanted=wanted_by(self._options.tables),
            messages=lambda _: False,
        )
        for entry in found:
            parts = [part for group in entry for part in self._parts(group, schema)]
            yield in_order(parts, lsn="_commit_version", ordinal="_commit_ordinal")

    def _parts(self, group: Group, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        assert group.relation is not None
        self._check(group.relation)
        if group.op is Op.UPDATE:
            if group.before is not None:
                old = replace(group, after=None)
                yield self._batch(old, group.before, "update_preimage", schema)
            assert group.after is not None
            yield self._batch(group, group.after, "update_postimage", schema)
        else:
            image = group.before if group.after is None else group.after
            empty: Image = tuple(None for _ in group.relation.columns)
            yield self._batch(group, image or empty, _NAMES[group.op], schema)

    def _check(self, relation: Relation) -> None:
        now = {column.name: column.type_oid for column in relation.columns}
        ours = {column.name: column.type_oid for column in self._relation.columns}
        if now != ours and not self._options.ignore_schema_change:
            different = sorted(set(now.items()) ^ set(ours.items()))
            names = ", ".join(sorted({name for name, _ in different}))
            raise SchemaChangedError(f"{relation.qualified_name} has changed: {names}")

    def _batch(
        self, group: Group, image: Image, change_type: str, schema: pa.Schema
    ) -> pa.RecordBatch:
        assert group.relation is not None
        count = len(group)
        cells = {
            column.name: (column, found)
            for column, found in zip(group.relation.columns, image, strict=True)
        }
        values: list[pa.Array] = []
        odd: dict[str, NDArray[np.bool_]] = {}
        for field, (name, type_) in zip(schema, self._types.items(), strict=False):
            _, found = cells.get(name, (None, None))
            if found is None:
                values.append(pa.nulls(count, field.type))
            else:
                column, lost = to_arrow(found.values, type_)
                values.append(column.cast(field.type))
                if lost.any():
                    odd[name] = lost
        facts = [
            repeated(change_type, count),
            pa.array(group.lsn.astype(np.int64)),
            pa.array(group.ordinal.astype(np.int64)),
            pa.array(group.committed_at).cast(pa.timestamp("us", "UTC")),
            pa.array(group.xid.astype(np.int64)),
            names_where(_unknown(group.relation, image), count),
            names_where(odd, count),
        ]
        return pa.RecordBatch.from_arrays([*values, *facts], schema=schema)


def _unknown(relation: Relation, image: Image) -> dict[str, NDArray[np.bool_]]:
    """Where null is a value PostgreSQL did not send: unchanged, or outside of an old key."""
    masks = {}
    for column, cells in zip(relation.columns, image, strict=True):
        if cells is None:
            masks[column.name] = np.ones(1, np.bool_)
        elif cells.unchanged is not None:
            masks[column.name] = cells.unchanged
    return masks


def _current(options: Options) -> tuple[Relation, dict[int, TypeName]]:
    """The table as the log's end describes it; without a log, as the catalog does."""
    try:
        log = Log.open(options.log)
    except ConfigError:
        if not options.dsn:
            raise
        return _from_catalog(options), {}
    relations: dict[int, Relation] = {}
    types: dict[int, TypeName] = {}
    for _, relation, used in log.relations(log.end().position):
        relations[relation.oid] = relation
        types |= used
    wanted = wanted_by(options.tables)
    found = [relation for relation in relations.values() if wanted(relation)]
    if len(found) == 1:
        return found[0], types
    if not found and options.dsn:
        return _from_catalog(options), {}
    what = "no change of it is in the log yet" if not found else "it fits several tables"
    raise ConfigError(
        f"table {options.table!r}: {what}",
        hint="Write schema.table; the first change of a table tells its columns.",
    )


def _from_catalog(options: Options) -> Relation:
    from tailrace.pipeline.inline import read_relation  # noqa: PLC0415 - psycopg, only with a DSN

    return read_relation(options)
