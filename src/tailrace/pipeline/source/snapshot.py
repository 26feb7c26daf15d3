"""The batch reader: a table as of one moment, read by many tasks at once.

Planning takes a snapshot that a process of its own keeps, and cuts the table into stretches of
pages; each task imports the snapshot and copies its stretch out. Spark plans a frame
once, so all that is collected from one sees the table as of the first time.
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
from tailrace.postgres.publication import TableName
from tailrace.snapshot.copy import copy, query
from tailrace.snapshot.export import Exported, imported
from tailrace.snapshot.keeper import keep
from tailrace.snapshot.rows import read_group
from tailrace.snapshot.table import Stretch, Table, read_table, stretches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from tailrace.pipeline.source.options import Options


class Piece(InputPartition):
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
        self.pushFilters = _Push(self._filters)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[Piece]:
        """Take a snapshot, and cut the table as it sees it."""
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
                # What Spark runs at a time on one machine; in a cluster nobody tells.
                together=os.cpu_count() or 1,
            )
        return [Piece(snapshot, table, stretch) for stretch in cut]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a stretch."""
        assert isinstance(partition, Piece)
        frame = TableFrame(self._options, self._schema)
        table = partition.table
        columns = [column.name for column in table.relation.columns]
        found = conditions(self._filters, table)
        with imported(self._options.dsn, partition.snapshot) as connection:
            select = query(partition.stretch, columns, found)
            done = 0
            for count, image in copy(connection, select, len(columns)):
                yield from frame.rows(
                    read_group(table, partition.snapshot, image, count, first=done)
                )
                done += count
        freeze_gc()


class _Push:
    """`pushFilters` of a reader. PostgreSQL leaves out what it can; Spark filters again.

    Spark refuses to plan a reader that has a method for this unless the session has
    `spark.sql.python.filterPushdown.enabled`, and a plain session has not. So this passes for the
    inherited one, which is all that Spark looks at, and is called where the setting is on.
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
    kept = tuple(column for column in table.relation.columns if column.name in columns)
    return replace(table, relation=replace(table.relation, columns=kept))
