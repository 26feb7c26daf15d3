"""The broker's tables: which topics are copied, and their records by offset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.broker.tables import headers
from tailrace.decode.typed import to_arrow
from tailrace.decode.types import Kind, Type
from tailrace.errors import ConfigError
from tailrace.postgres.connection import VALUES_SQL, connect, translate
from tailrace.shadow.ledger import digest
from tailrace.snapshot.copy import copy as copy_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from psycopg import Connection

    from tailrace.shadow.ledger import PartitionCopy

_CONNECT_S = 10
_TOPICS = """
SELECT t.id, t.uuid::text, t.name, t.partitions, coalesce(s.enabled, true),
       coalesce(s.append, false), coalesce(s.starts, '{}'), t.config
FROM kafka.topics t LEFT JOIN kafka.shadow s ON s.topic_id = t.id
WHERE NOT t.unlogged
"""
_EXTENTS = """
SELECT topic_id, partition_id, log_start, next_offset FROM kafka.partitions
"""
_RECORDS = """
SELECT "offset", "timestamp", key, value, headers FROM kafka.messages
WHERE topic_id = {topic} AND partition_id = {partition}
  AND "offset" >= {first} AND "offset" < {end}
ORDER BY "offset"
"""
_TYPES = [Kind.INT8, Kind.TIMESTAMPTZ, Kind.BYTEA, Kind.BYTEA, Kind.TEXT]
STORED = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.string()),
    ]
)
"""Records of one partition, in order of their offsets."""

PartitionKey = tuple[int, int]
"""A topic's id and a partition number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTopic:
    """A topic of the broker, and whether it is copied."""

    id: int
    uuid: str
    name: str
    partitions: int
    enabled: bool = True
    append: bool = False
    """Whether the Kafka topic may already have records of another origin."""
    starts: Sequence[int] = ()
    config: dict[str, str] = field(default_factory=dict)

    def start(self, partition: int) -> int:
        """The first offset to copy."""
        return self.starts[partition] if partition < len(self.starts) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The first offset of a partition, and the next one."""

    first: int
    next: int


class BrokerTables:
    """A database session that reads topics and records."""

    def __init__(self, dsn: str) -> None:
        self.connection: Connection[Any] = connect(dsn, connect_timeout_s=_CONNECT_S)
        try:
            self._execute(VALUES_SQL)
            (row,) = self._execute("SELECT to_regclass('kafka.shadow')")
        except BaseException:
            self.close()
            raise
        if row[0] is None:
            self.close()
            raise ConfigError(
                "the tables of the broker are missing or out of date in this database",
                hint="Create or update them: tailrace broker --init",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self.connection.close()

    def _execute(self, query: str) -> list[tuple[Any, ...]]:
        try:
            cursor = self.connection.execute(query.encode())
            return cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            raise translate(error) from error

    def topics(self) -> dict[int, BrokerTopic]:
        """All topics by id, without unlogged ones: their records are not in the WAL."""
        names = ("id", "uuid", "name", "partitions", "enabled", "append", "starts", "config")
        topics = (
            BrokerTopic(**dict(zip(names, row, strict=True))) for row in self._execute(_TOPICS)
        )
        return {topic.id: topic for topic in topics}

    def extents(self) -> dict[PartitionKey, Extent]:
        """The offsets of each partition."""
        return {
            (topic, partition): Extent(first=first, next=end)
            for topic, partition, first, end in self._execute(_EXTENTS)
        }

    def records(self, key: PartitionKey, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """The records of `[first, end)` that the table has."""
        select = _RECORDS.format(topic=key[0], partition=key[1], first=first, end=end)
        for _, image in copy_out(self.connection, select, len(STORED)):
            values = [
                to_arrow(cells.values, Type(kind=kind))[0]
                for cells, kind in zip(image, _TYPES, strict=True)
                if cells is not None
            ]
            values[1] = pc.divide(pc.cast(values[1], pa.int64()), 1000)
            yield pa.RecordBatch.from_arrays(values, schema=STORED)

    def agrees(self, key: PartitionKey, extent: Extent, copy: PartitionCopy) -> bool:
        """Whether a copy may be of this partition: it is not ahead, and its last record is here.

        A record that the broker's retention has deleted counts as unchanged. `extent` must be read
        after the copy.
        """
        return copy.next <= extent.next and all(
            record_digest(rows) == copy.last for rows in self.records(key, copy.next - 1, copy.next)
        )


def record_digest(row: pa.RecordBatch) -> int:
    """The checksum of one record."""
    (one,) = row.to_pylist()
    return digest(one["timestamp"], one["key"], one["value"], headers.parse(one["headers"]))
