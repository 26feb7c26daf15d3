"""The batch reader: a table as of one moment, read by several tasks at the same time.

Planning exports a snapshot, which a process of its own holds open, and cuts the table into
stretches of pages. Each task imports the snapshot and copies one stretch. Spark plans a frame once,
so all actions on one frame see the table as of the first action.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tailrace.pipeline.frames.table import TableFrame
from tailrace.pipeline.source.filters import conditions
from tailrace.pipeline.source.inline import read_relation
from tailrace.pipeline.worker import freeze_gc
from tailrace.postgres.names import TableName
from tailrace.snapshot.catalog import read_table, stretches
from tailrace.snapshot.copy import copy, query
from tailrace.snapshot.export import Exported, imported
from tailrace.snapshot.keeper import keep
from tailrace.snapshot.rows import read_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from tailrace.pipeline.source.options import Options
    from tailrace.snapshot.table import Stretch, Table


class TablePartition(InputPartition):
    """A stretch of a table for one task."""

    def __init__(self, snapshot: Exported, table: Table, stretch: Stretch) -> None:
        super().__init__(stretch)
        self.snapshot, self.table, self.stretch = snapshot, table, stretch


class SnapshotReader(DataSourceReader):
    """Reads a table in stretches of pages."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters: list[Filter] = []
        self.pushFilters = _PushFilters(self._filters)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[TablePartition]:
        """Export a snapshot and cut the table, as the snapshot sees it, into stretches."""
        options = self._options
        relation, _ = read_relation(options)
        name = TableName(relation.namespace, relation.name)
        snapshot = keep(options.dsn, name, idle_s=options.hold_s)
        with imported(options.dsn, snapshot) as connection:
            table = _narrowed(read_table(connection, name), options.columns)
            cut = stretches(
                connection,
                table,
                max_bytes=options.partition_bytes,
                # Spark's parallelism on one machine; a cluster's is not known here.
                together=os.cpu_count() or 1,
            )
        return [TablePartition(snapshot, table, stretch) for stretch in cut]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a stretch."""
        assert isinstance(partition, TablePartition)
        frame = TableFrame(self._options, self._schema)
        table = partition.table
        columns = [column.name for column in table.relation.columns]
        filters = conditions(self._filters, table)
        with imported(self._options.dsn, partition.snapshot) as connection:
            select = query(partition.stretch, columns, filters)
            first = 0
            for count, image in copy(connection, select, len(columns)):
                yield from frame.rows(
                    read_group(table, partition.snapshot, image, count, first=first)
                )
                first += count
        freeze_gc()


class _PushFilters:
    """`pushFilters` of a reader: PostgreSQL filters where it can, and Spark filters again.

    Spark refuses to plan a reader that overrides `pushFilters` unless the session has
    `spark.sql.python.filterPushdown.enabled`, which a plain session does not have. Spark compares
    `__func__` with that of the base class to find out. This object has the base class's `__func__`,
    so every session accepts it, and sessions with the setting call it.
    """

    def __init__(self, filters: list[Filter]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._filters = filters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._filters += filters
        return filters


def _narrowed(table: Table, columns: tuple[str, ...]) -> Table:
    if not columns:
        return table
    selected = tuple(column for column in table.relation.columns if column.name in columns)
    return replace(table, relation=replace(table.relation, columns=selected))
