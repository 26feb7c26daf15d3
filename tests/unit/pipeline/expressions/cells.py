"""A table with every kind of column, and its rows in the cells frame."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tailrace.config import Pipeline
from tailrace.pipeline.expressions.analysis import CELLS
from tailrace.pipeline.expressions.compile import fingerprint
from tailrace.pipeline.expressions.expression import Expressions, parse
from tailrace.schema import Column, Relation, ReplicaIdentity
from tailrace.sinks.nats.settings import NatsSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

SINK = NatsSink(type="nats")


def numeric(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


def column(name: str, oid: int, modifier: int = -1, *, key: bool = False) -> Column:
    return Column(name=name, type_oid=oid, type_modifier=modifier, key=key)


TABLE = Relation(
    oid=16400,
    namespace="public",
    name="orders",
    replica_identity=ReplicaIdentity.DEFAULT,
    columns=(
        column("id", 20, key=True),
        column("name", 25),
        column("price", 1700),
        column("total", 1700, numeric(10, 2)),
        column("paid", 16),
        column("created", 1184),
        column("local", 1114),
        column("day", 1082),
        column("photo", 17),
        column("doc", 3802),
        column("ratio", 701),
        column("op", 25),
    ),
)
FINGERPRINT = fingerprint(TABLE, {})
NAMES = [column.name for column in TABLE.columns]
ROW = {
    "id": "7",
    "name": "it's",
    "price": "1.50",
    "total": "20.25",
    "paid": "t",
    "created": "2025-12-12 12:00:34.338547+00",
    "local": "2025-01-01 00:00:00.5",
    "day": "2024-02-29",
    "photo": "\\xdead",
    "doc": '{"a": {"b": [1, "x"]}, "odd key": true}',
    "ratio": "NaN",
    "op": "column",
}


def image(**values: str | None) -> list[str | None]:
    """A row of NULLs except for these columns."""
    return [values.get(name) for name in NAMES]


def cells(
    op: str = "insert",
    *,
    after: list[str | None] | None = None,
    before: list[str | None] | None = None,
    unchanged: tuple[str, ...] = (),
    absent: tuple[str, ...] = (),
    relation: int | None = FINGERPRINT,
) -> tuple[Any, ...]:
    """One row of the cells frame."""
    return (
        *(255, 3, 9, datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), op, "public", "orders"),
        *(relation, '{"user_id": 5}', before, after),
        [NAMES.index(name) for name in unchanged],
        [NAMES.index(name) for name in absent],
        *(None, None, None),
    )


def frame_of(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    """The cells frame with these rows, without a worker of Python."""
    # Otherwise the optimizer evaluates expressions itself; pipelines run compiled ones.
    spark.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
    types = StructType.fromDDL(CELLS)
    assert isinstance(types, StructType)
    schema = to_arrow_schema(types, timezone="UTC")
    columns = [
        pa.array(values, of.type)
        for values, of in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=schema), CELLS)


def expressions(**settings: Any) -> Expressions:
    return parse(Pipeline(sink=SINK, **settings), name="p")


def written(value: str, style: str) -> str:
    """A string literal as a user may write it."""
    plain = value.replace("\\", "\\\\").replace("'", "''" if style == "doubled" else "\\'")
    if style != "escaped":
        return f"'{plain}'"
    escaped = "".join(
        f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
        for letter in value
    )
    return f"'{escaped}'"
