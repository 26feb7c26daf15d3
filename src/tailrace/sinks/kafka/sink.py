"""`Kafka`: the sink. One producer, all in order, nothing lost; in transactions, nothing twice.

Plain, it is at least once: an idempotent producer repeats nothing by itself, and a batch that was
cut off comes again as a whole.

Transactional, a flush is one Kafka transaction with the lane's position in it. A lane has one
transactional id, so opening it fences whoever had it: a worker that was given up, and also the
worker that delivered the lane's last batch, as Spark gives a lane to any of them. A sink that stays
open therefore begins by writing the position it knows. If that is refused, it connects again and
reads back; nothing has been written by then.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from tailrace.errors import PoisonedError, TailraceError
from tailrace.sinks.kafka import positions
from tailrace.sinks.kafka.ledger import Lane, Ledger
from tailrace.sinks.kafka.names import Place, place
from tailrace.sinks.kafka.producing import Producing
from tailrace.sinks.kafka.publisher import Publisher
from tailrace.sinks.kafka.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt
    from tailrace.sinks.kafka.positions import Reached
    from tailrace.sinks.kafka.publisher import Outgoing
    from tailrace.sinks.kafka.settings import Kafka as Settings
    from tailrace.sinks.kafka.settings import KafkaSink

ID_HEADER = "tailrace-id"


class Kafka(Producing):
    """Messages into Kafka's topics. `name` is the pipeline's.

    `lane` of `lanes` deliver side by side; `source` tells the histories of databases apart, in
    which the same position means something else. Both matter to transactions alone.
    """

    def __init__(
        self, settings: KafkaSink, *, name: str, lane: int = 0, lanes: int = 1, source: str = ""
    ) -> None:
        super().__init__(name)
        self._settings = settings
        self._lane = Lane(number=lane, of=lanes, source=source)
        self._topics = Topics(settings, name=name)
        self._ledger: Ledger | None = None

    def open(self, after: Position) -> None:
        """Connect; in transactions, read back how far the lane is."""
        try:
            if self._publisher is None or self._rows or self._skipped or not self._still_ours():
                self._connect()
            if self._ledger is not None:
                self._ledger.open(after)
                self._say_resumed(self._ledger, after)
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
        positions.ready(settings, topic, name=self._name, partitions=lane.of)
        self._publisher.fence()
        self._ledger = Ledger(lane, positions.read(settings, name=self._name))

    def _say_resumed(self, ledger: Ledger, after: Position) -> None:
        if ledger.ahead and ledger.stored is not None:
            structlog.get_logger().info(
                "kafka.resumed",
                lane=self._lane.number,
                after=str(after),
                stored=str(ledger.stored.position),
            )

    def _still_ours(self) -> bool:
        """Whether this producer may go on; in transactions it begins one to find out."""
        if self._ledger is None or self._ledger.stored is None:
            return self._ledger is None
        try:
            self._opened().begin()
            self._put(self._ledger.stored)
            self._opened().settle()
        except TailraceError:
            return False
        return True

    def write(self, batch: pa.RecordBatch) -> None:
        """Put on its way what Kafka does not hold yet."""
        with self._attempt() as publisher:
            missing = batch if self._ledger is None else self._ledger.missing(batch)
            self._skipped += batch.num_rows - missing.num_rows
            if missing.num_rows:
                self._publish(publisher, missing)

    def _publish(self, publisher: Publisher, rows: pa.RecordBatch) -> None:
        unfit = self._topics.unfit(rows.column("destination"))
        fit = rows if unfit is None else rows.slice(0, unfit[0])
        if fit.num_rows:
            if self._ledger is not None:
                publisher.begin()
            self._rows += fit.num_rows
            self._bytes += pc.sum(pc.binary_length(fit.column("payload"))).as_py()
            try:
                publisher.publish(self._outgoing(fit))
            except PoisonedError:
                self._keep(publisher)
                raise
        if unfit is not None:
            self._keep(publisher)
            row, error = unfit
            name = rows.column("id")[row].as_py().decode("utf-8", "replace")
            text = f"message {name!r} cannot go to Kafka: {error}"
            raise type(error)(text, hint=error.hint)

    def _outgoing(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        settings = self._settings
        ids = batch.column("id").to_pylist()
        coded = batch.column("destination").dictionary_encode()
        # `Topics` has looked at them all.
        places = [place(one) or Place("") for one in coded.dictionary.to_pylist()]
        indices = coded.indices.to_pylist()
        return zip(
            map([one.topic for one in places].__getitem__, indices),
            batch.column("payload").to_pylist(),
            batch.column("key").to_pylist(),
            map([one.partition for one in places].__getitem__, indices),
            ids,
            (batch.column("committed_at").to_numpy() // 1000).tolist(),
            ([(ID_HEADER, name)] for name in ids) if settings.headers else repeat(None),
            strict=False,
        )

    def _keep(self, publisher: Publisher) -> None:
        """Before a message that can not be sent is said: what stands before it should arrive."""
        if self._ledger is None:
            publisher.settle()

    def flush(self) -> Receipt:
        """Wait for every ack, and commit."""
        with self._attempt() as publisher:
            if self._ledger is None:
                publisher.settle()
            else:
                self._commit(publisher, self._ledger)
        return self._receipt()

    def _commit(self, publisher: Publisher, ledger: Ledger) -> None:
        ledger.verify()
        reached = ledger.reached()
        if reached is not None:
            publisher.begin()
            self._put(reached)
        publisher.settle()
        if publisher.within_s is not None:
            publisher.commit()
        ledger.stored = reached or ledger.stored

    def _put(self, reached: Reached) -> None:
        lane = self._lane.number
        topic = positions.topic_of(self._settings, self._name)
        self._opened().put(topic, lane, key=b"%d" % lane, value=reached.dump())

    def close(self) -> None:
        """Let go of the producer; a transaction that is open is given up."""
        self._ledger = None
        super().close()


def probe(settings: Settings, *, name: str) -> None:
    """An error unless the cluster answers."""
    publisher = Publisher(settings, name=name)
    try:
        publisher.connect()
    finally:
        publisher.close()
