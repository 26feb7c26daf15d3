"""`Kafka`: the sink. At least once with an idempotent producer, exactly once with transactions.

Without `transactional` the producer drops its own retries' duplicates, and Spark replays a batch
that was cut off as a whole: at least once.

With `transactional` each flush is one Kafka transaction that also carries the lane's position
(`positions`). Each lane has one transactional id. Opening a sink fences every earlier producer with
that id: a worker that hangs, but also the worker that delivered the lane's previous batch, because
Spark may run a lane in any worker. Therefore a sink that stays open begins each batch by writing
its known position again. If Kafka refuses that, the sink has been fenced: it reconnects and reads
the position back. Nothing of the batch has been written by then.
"""

from __future__ import annotations

import operator
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import structlog
from typing_extensions import override

from tailrace import headers
from tailrace.errors import PoisonedError, SinkUnreachableError, TailraceError
from tailrace.sinks.kafka import positions
from tailrace.sinks.kafka.names import Destination, parse_destination
from tailrace.sinks.kafka.producing import ProducerSink
from tailrace.sinks.kafka.publisher import Publisher
from tailrace.sinks.kafka.sizes import BATCH_BYTES, ID_HEADER, compressed_bytes, record_bytes
from tailrace.sinks.kafka.topics import Topics
from tailrace.sinks.ledger import LaneId, Ledger
from tailrace.sinks.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt
    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane, Receipt
    from tailrace.sinks.kafka.publisher import Outgoing
    from tailrace.sinks.kafka.settings import Kafka as Settings
    from tailrace.sinks.kafka.settings import KafkaSink
    from tailrace.sinks.ledger import LanePosition


class Kafka(ProducerSink):
    """Publishes the messages of a lane to Kafka topics. Only transactions need to know which."""

    def __init__(self, settings: KafkaSink, lane: Lane) -> None:
        super().__init__(lane.pipeline)
        self._settings = settings
        self._lane = LaneId(
            number=lane.number, lanes=lane.lanes, source=lane.history, reset=lane.reset
        )
        self._topics = Topics(settings, name=lane.pipeline)
        self._ledger: Ledger | None = None

    def open(self, after: Position) -> None:
        """Connect; with transactions, read the lane's position back."""
        try:
            unflushed = self._rows or self._skipped
            if self._publisher is None or unflushed or not self._still_owns_lane():
                self._connect()
            if self._ledger is not None:
                self._ledger.open(after)
                self._log_resumed(self._ledger, after)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self.close()
        settings, lane = self._settings, self._lane
        if not settings.transactional:
            self._publisher = Publisher(settings, name=self._name)
            self._publisher.connect()
            return
        self._publisher = Publisher(
            settings,
            name=self._name,
            transactional_id=f"{settings.prefix}-{self._name}-{lane.number}",
        )
        self._publisher.connect()
        topic = positions.topic_of(settings, self._name)
        positions.ensure_topic(settings, topic, name=self._name, partitions=lane.lanes)
        self._publisher.fence()
        stored = positions.read(settings, name=self._name)
        self._ledger = Ledger(lane, stored, system="Kafka", guide="docs/guides/kafka.md")

    def _log_resumed(self, ledger: Ledger, after: Position) -> None:
        if ledger.ahead and ledger.stored is not None:
            structlog.get_logger().info(
                "kafka.resumed",
                lane=self._lane.number,
                after=str(after),
                stored=str(ledger.stored.position),
            )

    def _still_owns_lane(self) -> bool:
        """Whether the open producer can be used; with transactions it begins one to find out."""
        if self._ledger is None or self._ledger.stored is None:
            return self._ledger is None
        try:
            self._require_open().begin()
            self._put_position(self._ledger.stored)
            self._require_open().drain()
        except TailraceError:
            return False
        return True

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows without a valid topic, and those that are too large. Creates missing topics."""
        with self._attempt():
            limit = self._settings.max_message_bytes
            sizes = record_bytes(batch, named=self._settings.headers)
            errors = self._topics.invalid(batch.column("destination"))
            errors = {**self._above_topics(batch, sizes), **errors}
            for row in np.flatnonzero(sizes > limit).tolist():
                errors[row] = PoisonedError(
                    f"it has {sizes[row]} bytes, max_message_bytes is {limit}",
                    hint="Filter it out, or raise max_message_bytes here and for the topic.",
                )
            # Kafka may hold messages that it would not take today.
            held = 0 if self._ledger is None else self._ledger.held(batch)
            return {row: Outcome.refused(each) for row, each in errors.items() if row >= held}

    def _above_topics(
        self, batch: pa.RecordBatch, sizes: npt.NDArray[np.int64]
    ) -> dict[int, TailraceError]:
        """The rows that their topic does not take, compressed and alone in a batch.

        Later messages of their keys would be stored before the broker has refused them.
        """
        destinations, payloads = batch.column("destination"), batch.column("payload")
        limits = self._topics.limits(destinations)
        codec = self._settings.codec
        errors: dict[int, TailraceError] = {}
        for row in np.flatnonzero(sizes + BATCH_BYTES > limits).tolist():
            size = compressed_bytes(int(sizes[row]), payloads[row].as_py(), codec) + BATCH_BYTES
            if size > limits[row]:
                destination = destinations[row].as_py()
                limit = self._topics.present_limit(destination)
                if size > limit:
                    errors[row] = _above_topic(destination, size, limit)
        return errors

    @override
    def explain(self, publisher: Publisher, error: TailraceError) -> TailraceError:
        """A topic that takes less than before refuses what passed `inspect`: a replay finds it."""
        if isinstance(error, PoisonedError) and self._topics.take_less():
            later = SinkUnreachableError(f"{error}; it took more when the batch began")
            later.__cause__ = error
            return later
        return super().explain(publisher, error)

    def write(self, batch: pa.RecordBatch) -> None:
        """Publish the rows that Kafka does not hold yet."""
        with self._attempt() as publisher:
            missing = batch if self._ledger is None else self._ledger.missing(batch)
            self._skipped += batch.num_rows - missing.num_rows
            if missing.num_rows:
                self._publish(publisher, missing)

    def _publish(self, publisher: Publisher, rows: pa.RecordBatch) -> None:
        """Without transactions the messages before one that a broker refuses are delivered."""
        if self._ledger is not None:
            publisher.begin()
        self._rows += rows.num_rows
        self._bytes += pc.sum(pc.binary_length(rows.column("payload"))).as_py()
        try:
            publisher.publish(self._outgoing(rows))
        except PoisonedError:
            if self._ledger is None:
                publisher.drain()
            raise

    def _outgoing(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        ids = batch.column("id").to_pylist()
        coded = batch.column("destination").dictionary_encode()
        # `inspect` has checked them all, so none of them is None.
        parsed = [
            parse_destination(value) or Destination("") for value in coded.dictionary.to_pylist()
        ]
        indices = coded.indices.to_pylist()
        # Columns are zipped: no Python code runs per row until librdkafka takes it.
        return zip(
            map([destination.topic for destination in parsed].__getitem__, indices),
            batch.column("payload").to_pylist(),
            batch.column("key").to_pylist(),
            map([destination.partition for destination in parsed].__getitem__, indices),
            ids,
            (batch.column("committed_at").to_numpy() // 1000).tolist(),
            self._headers(batch, ids),
            strict=False,
        )

    def _headers(self, batch: pa.RecordBatch, ids: list[bytes]) -> Iterable[Any]:
        named, added = self._settings.headers, batch.column("headers")
        own = ([(ID_HEADER, name)] for name in ids) if named else repeat(None)
        if added.null_count == len(added):
            return own
        texts = [[(at.decode(), value) for at, value in each] for each in headers.pairs(added)]
        return map(operator.add, own, texts) if named else texts

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait until all messages are acknowledged; with transactions, commit."""
        del end
        with self._attempt() as publisher:
            if self._ledger is None:
                publisher.drain()
            else:
                self._commit(publisher, self._ledger)
        return self._receipt()

    def _commit(self, publisher: Publisher, ledger: Ledger) -> None:
        ledger.verify()
        position = ledger.to_commit()
        if position is not None:
            publisher.begin()
            self._put_position(position)
        publisher.drain()
        if publisher.transaction_age_s is not None:
            publisher.commit()
        ledger.stored = position or ledger.stored

    def _put_position(self, position: LanePosition) -> None:
        lane = self._lane.number
        topic = positions.topic_of(self._settings, self._name)
        self._require_open().put(topic, lane, key=b"%d" % lane, value=position.dump())

    def close(self) -> None:
        """Close the producer and abort its open transaction."""
        self._ledger = None
        super().close()


def _above_topic(destination: bytes, size: int, limit: int) -> PoisonedError:
    return PoisonedError(
        f"it has {size} bytes in Kafka, max.message.bytes of its topic is {limit}",
        hint=f"Raise max.message.bytes of {destination.decode()}, or exclude large columns.",
    )


def probe(settings: Settings, *, name: str) -> None:
    """Fail unless the cluster answers."""
    publisher = Publisher(settings, name=name)
    try:
        publisher.connect()
    finally:
        publisher.close()
