"""Idempotent producers: the last batches of each, which decide whether a batch is its next one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from tailrace.broker.tables.pending import WriteResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.broker.tables.pool import Connection
    from tailrace.broker.tables.records import Batch

ProducerKey = tuple[int, int, int]
"""A producer's id, and a partition key."""
_REMEMBERED_BATCHES = 5
"""As in Kafka: a producer has at most five requests in flight."""
_NO_EPOCH = -1

_READ = """
SELECT producer_id, topic_id, partition_id, epoch, batches FROM kafka.producers
WHERE (producer_id, topic_id, partition_id)
   IN (SELECT * FROM unnest(%s::bigint[], %s::int[], %s::int[]))
"""
_EXPIRED_UP_TO = "SELECT coalesce(max(producer_id), -1) FROM kafka.expired_producers"
_STORE = """
INSERT INTO kafka.producers (producer_id, topic_id, partition_id, epoch, batches)
SELECT * FROM unnest(%s::bigint[], %s::int[], %s::int[], %s::smallint[], %s::jsonb[])
ON CONFLICT (producer_id, topic_id, partition_id) DO UPDATE
SET epoch = excluded.epoch, batches = excluded.batches, written_at = now()
"""


@dataclass(slots=True)
class Producer:
    """The state of a producer in one partition."""

    epoch: int
    batches: list[list[int]] = field(default_factory=list)
    """The last batches: first sequence, last sequence, offset."""
    expired: bool = False
    """Whether it may have written before, and its state was deleted."""

    def add(self, batch: Batch, offset: int) -> None:
        """Remember a batch."""
        recent = self.batches[1 - _REMEMBERED_BATCHES :]
        self.batches = [*recent, [batch.sequence, batch.last_sequence, offset]]
        self.expired = False


def check_sequence(producer: Producer, batch: Batch) -> WriteResult | None:
    """The answer to a batch that is not written; None if it is the producer's next batch.

    | the batch's epoch and sequence             | answer                         |
    |--------------------------------------------|--------------------------------|
    | an older epoch                             | `invalid_producer_epoch`       |
    | one of the last five batches               | the offset it has              |
    | the next sequence; 0 in a newer epoch      | None: write it                 |
    | any, the producer's state has expired      | None: write it, as Kafka does  |
    | anything else                              | `out_of_order_sequence_number` |
    """
    if batch.producer_epoch < producer.epoch:
        return WriteResult(error="invalid_producer_epoch", message="a newer producer uses this id")
    if batch.producer_epoch > producer.epoch:
        producer.epoch, producer.batches = batch.producer_epoch, []
    if producer.expired:
        return None
    for first, last, offset in producer.batches:
        if (first, last) == (batch.sequence, batch.last_sequence):
            return WriteResult(offset=offset)
    expected = (producer.batches[-1][1] + 1) & 0x7FFFFFFF if producer.batches else 0
    if batch.sequence != expected:
        return WriteResult(
            error="out_of_order_sequence_number",
            message=f"expected sequence {expected}, got {batch.sequence}",
        )
    return None


async def read(connection: Connection, keys: Sequence[ProducerKey]) -> dict[ProducerKey, Producer]:
    """The producers that have written before; those whose state has expired without batches."""
    if not keys:
        return {}
    rows = await (await connection.execute(_READ, _columns(keys))).fetchall()
    known = {(row[0], row[1], row[2]): Producer(row[3], row[4]) for row in rows}
    unknown = [key for key in keys if key not in known]
    if unknown:
        (expired_up_to,) = await (await connection.execute(_EXPIRED_UP_TO)).fetchone() or (-1,)
        for key in unknown:
            if key[0] <= expired_up_to:
                known[key] = Producer(_NO_EPOCH, expired=True)
    return known


async def store(connection: Connection, producers: Mapping[ProducerKey, Producer]) -> None:
    """Write the state of producers in the open transaction."""
    if not producers:
        return
    keys = sorted(producers)
    epochs = [producers[key].epoch for key in keys]
    batches = [Jsonb(producers[key].batches) for key in keys]
    await connection.execute(_STORE, [*_columns(keys), epochs, batches])


def _columns(rows: Sequence[ProducerKey]) -> list[list[int]]:
    return [list(column) for column in zip(*rows, strict=True)]
