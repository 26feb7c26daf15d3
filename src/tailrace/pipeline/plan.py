"""The plan of a pipeline with expressions: Spark SQL for every version of its tables.

A plan covers the table versions in force where the query starts and those that the log states after
it. The source ends a micro-batch before a version that the plan does not cover and asks for a new
plan (`tailrace.pipeline.source.planner`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tailrace.errors import ConfigError
from tailrace.pipeline import enrich
from tailrace.pipeline.expressions import expression, lookups
from tailrace.pipeline.expressions.analysis import analyse
from tailrace.pipeline.expressions.compile import (
    NO_BYTES,
    NO_GROUP,
    NO_HEADERS,
    Compiled,
    combine,
    fingerprint,
)
from tailrace.pipeline.expressions.compile import compile as compiled_for
from tailrace.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.config import Pipeline
    from tailrace.log.reader import Log
    from tailrace.pipeline.expressions.expression import Expressions
    from tailrace.position import Position
    from tailrace.schema import Relation, TypeName
    from tailrace.snapshot.table import Table

_IMAGES = ("before", "after", "unchanged", "absent")
_NO_TEXT = "CAST(NULL AS STRING)"
_NO_COLUMN = {
    "destination": _NO_TEXT,
    "message_key": _NO_TEXT,
    "message_payload": NO_BYTES,
    "message_headers": NO_HEADERS,
    "message_group": NO_GROUP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The compiled expressions of a pipeline, by table version."""

    expressions: Expressions
    versions: dict[int, Compiled]
    types: dict[int, dict[int, TypeName]]
    message: Compiled

    def relations(self) -> dict[int, tuple[Relation, dict[int, TypeName]]]:
        """The columns and types of messages, by version."""
        relations = {}
        for number, compiled in self.versions.items():
            assert compiled.selected is not None
            relations[number] = (compiled.selected, self.types[number])
        return relations

    def apply(self, frame: DataFrame) -> DataFrame:
        """Filter by `where`, then compute the others."""
        if self.expressions.where is not None:
            frame = frame.where(self._text("where", mark="true"))
        changed: dict[str, str] = dict(_NO_COLUMN)
        if self.expressions.select is not None:
            for image in _IMAGES:
                texts = {
                    number: version.images()[image] for number, version in self.versions.items()
                }
                changed[image] = combine(texts, message=image, mark=image)
        if self.expressions.route is not None:
            changed["destination"] = self._text("route", mark=_NO_TEXT)
        if self.expressions.key is not None:
            changed["message_key"] = self._text("key", mark=_NO_TEXT)
        if self.expressions.payload is not None:
            changed["message_payload"] = self._text("payload", mark=NO_BYTES)
        if self.expressions.headers:
            changed["message_headers"] = self._text("headers", mark=NO_HEADERS)
        if self.expressions.group is not None:
            changed["message_group"] = self._text("group", mark=NO_GROUP)
        return frame.withColumns({name: sql.expr(text) for name, text in changed.items()})

    def _text(self, stage: str, *, mark: str) -> str:
        texts = {number: getattr(version, stage) for number, version in self.versions.items()}
        return combine(texts, message=getattr(self.message, stage), mark=mark)

    def lookups(self) -> str:
        """The lookups as tasks need them; empty without."""
        found = self.expressions.lookups
        return lookups.dump([*found.values()]) if found else ""

    def lane_key(self) -> tuple[str, ...]:
        """The column that `group` or `key` names: with several lanes it chooses the lane."""
        group = self.expressions.group
        chosen = group or self.expressions.key
        if chosen is None:
            return ()
        column = expression.Item(name=None, expression=chosen).column
        if column is None:
            setting = "key" if group is None else "group"
            raise ConfigError(f"with several lanes, `{setting}` must be a column")
        return (column.name,)


def make(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    name: str,
    log: Log,
    after: Position,
    dsn: str,
    also: Iterable[Table] = (),
) -> Plan | None:
    """The plan for changes after a position and for these tables; None without expressions.

    The source at `dsn` is asked for the columns of lookups.
    """
    expressions = expression.parse(pipeline, name=name)
    if not expressions:
        return None
    if expressions.lookups:
        expressions = enrich.with_columns(expressions, dsn)
    tables = Tables(pipeline.tables)
    versions: dict[int, Compiled] = {}
    types: dict[int, dict[int, TypeName]] = {}
    in_log = ((relation, used) for _, relation, used in log.relations(after))
    for relation, used in chain(in_log, ((table.relation, table.types) for table in also)):
        number = fingerprint(relation, used)
        if number not in versions and tables.match(relation.namespace, relation.name):
            compiled = compiled_for(expressions, relation, used)
            versions[number] = analyse(spark, expressions, compiled)
            types[number] = used
    return Plan(
        expressions=expressions,
        versions=versions,
        types=types,
        message=compiled_for(expressions, None, {}),
    )
