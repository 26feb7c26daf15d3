"""`Shadow`: the sink. Records of the broker into Kafka, each once and in order.

A flush is a Kafka transaction with the ledger's records in it. The producer has one transactional
id, so opening it fences whoever had it before. A sink that stays open begins by writing a record
that says nothing; if that is refused it connects again and reads the ledger back.

What comes again is known by its offset. What is missing before a record is read from the table:
it is older than the stream, or was not wanted when it came.
"""

from __future__ import annotations

from itertools import pairwise, repeat
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow.compute as pc

from tailrace.broker.tables import headers
from tailrace.errors import SinkRefusedError, SinkUnreachableError, TailraceError
from tailrace.shadow import ledger, target
from tailrace.shadow.ledger import Copied, digest
from tailrace.shadow.source import BrokerTables
from tailrace.sinks.kafka import positions
from tailrace.sinks.kafka.producing import Producing
from tailrace.sinks.kafka.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.config import ShadowSink
    from tailrace.position import Position
    from tailrace.shadow.source import BrokerTopic, Place
    from tailrace.sinks.contract import Receipt
    from tailrace.sinks.kafka.publisher import Outgoing

_COMMIT_ROWS = 200_000
"""Older records are committed at intervals: a transaction may not last for ever."""


class Shadow(Producing):
    """Records into Kafka's topics of the same names. `name` is the pipeline's."""

    def __init__(self, settings: ShadowSink, *, name: str) -> None:
        super().__init__(name)
        self._settings = settings
        self._source: BrokerTables | None = None
        self._targets = target.Targets(settings, name=name)
        self._topics: dict[int, BrokerTopic] = {}
        self._copied: dict[bytes, Copied] = {}
        self._changed: set[bytes] = set()
        self._pending = 0
        """Records of the open transaction."""

    def open(self, after: Position) -> None:  # noqa: ARG002 - offsets say more than positions
        """Connect, and read back how far each partition is."""
        try:
            if self._publisher is None or self._changed or not self._still_ours():
                self._connect()
            self._topics = self._tables().topics()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self.close()
        settings, name = self._settings, self._name
        self._source = BrokerTables(settings.dsn.get_secret_value())
        publisher = Publisher(settings, name=name, transactional_id=f"{settings.prefix}-{name}")
        self._publisher = publisher
        publisher.connect()
        positions.ready(settings, ledger.topic_of(settings, name), name=name, partitions=1)
        publisher.fence()
        self._copied = ledger.read(settings, name=name)
        self._check_source(self._source)

    def _check_source(self, source: BrokerTables) -> None:
        """The copy may be behind the broker, and never before it: then this is another past."""
        extents = source.extents()
        for topic in source.topics().values():
            for partition in range(topic.partitions):
                held = self._copied.get(ledger.key_of(topic.uuid, partition))
                extent = extents.get((topic.id, partition))
                if not topic.enabled or held is None or extent is None or not held.runs:
                    continue
                if held.next > extent.next or not _agree(source, (topic.id, partition), held):
                    raise SinkRefusedError(
                        f"partition {partition} of topic {topic.name} has another record at offset "
                        f"{held.next - 1} here than Kafka has: the database is not the one that "
                        "was copied, or it was set back to an earlier time",
                        hint="Delete the topic in Kafka and copy it anew under another pipeline's "
                        f"name, or leave it out: tailrace shadow off {topic.name}",
                    )

    def _still_ours(self) -> bool:
        """Whether this producer may go on; it begins a transaction to find out."""
        try:
            publisher, topic = self._opened(), ledger.topic_of(self._settings, self._name)
            publisher.begin()
            publisher.put(topic, 0, key=ledger.OWNER, value=b"")
            publisher.settle()
        except TailraceError:
            return False
        return True

    def write(self, batch: pa.RecordBatch) -> None:
        """Put on its way what Kafka does not hold yet."""
        with self._attempt():
            asked = batch.filter(pc.is_null(batch["topic"]))["value"]
            for content in asked.to_pylist():
                for topic, partition, end in orjson.loads(content):
                    self._fill((topic, partition), end)
            records = batch.filter(pc.is_valid(batch["topic"]))
            for place, rows in _by_place(records):
                self._take(place, rows)

    def _take(self, place: Place, rows: pa.RecordBatch) -> None:
        """Records of one partition, as the stream brings them."""
        first = rows["offset"][0].as_py()
        if not self._fill(place, first):
            self._skipped += rows.num_rows
            return
        topic = self._topics[place[0]]
        least = max(self._held(topic, place[1]).next, topic.start(place[1]))
        known = int(np.searchsorted(rows["offset"].to_numpy(), least))
        self._skipped += known
        self._send(topic, place[1], rows.slice(known))

    def _fill(self, place: Place, end: int) -> bool:
        """Copy what is missing below an offset; False if the topic is not copied at all."""
        topic = self._topics.get(place[0])
        if topic is None:
            # It may be younger than what was read, or gone.
            self._topics = self._tables().topics()
            topic = self._topics.get(place[0])
        if topic is None or not topic.enabled:
            return False
        first = max(self._held(topic, place[1]).next, topic.start(place[1]))
        if first < end:
            for rows in self._tables().records(place, first, end):
                self._send(topic, place[1], rows)
                if self._pending >= _COMMIT_ROWS:
                    self._commit()
        return True

    def _held(self, topic: BrokerTopic, partition: int) -> Copied:
        key = ledger.key_of(topic.uuid, partition)
        held = self._copied.get(key)
        if held is None:
            self._ready(topic)
            held = self._copied[key] = Copied(topic=topic.name, base=self._base(topic, partition))
        return held

    def _ready(self, topic: BrokerTopic) -> None:
        if self._targets.ready(topic):
            # The producer may know it with fewer partitions.
            self._opened().look_at(topic.name)

    def _base(self, topic: BrokerTopic, partition: int) -> int:
        """Where our records begin: at the beginning, unless others may be before them."""
        if topic.append:
            return target.bounds(self._settings, topic.name, partition, name=self._name)[1]
        there = target.committed(self._settings, topic.name, partition, name=self._name)
        if next(there, None) is not None:
            raise SinkRefusedError(
                f"partition {partition} of topic {topic.name} has records in Kafka that are not of "
                "this shadow",
                hint="Delete the topic there; or copy behind them: "
                f"tailrace shadow on {topic.name} --append",
            )
        return 0

    def _send(self, topic: BrokerTopic, partition: int, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._ready(topic)
        publisher = self._opened()
        publisher.begin()
        publisher.publish(_outgoing(topic.name, partition, rows))
        key = ledger.key_of(topic.uuid, partition)
        held = self._held(topic, partition)
        last = _digest(rows.slice(rows.num_rows - 1))
        for first, end in _runs(rows["offset"].to_numpy()):
            held = held.with_records(first, end, last)
        self._copied[key] = held
        self._changed.add(key)
        self._pending += rows.num_rows
        self._rows += rows.num_rows
        self._bytes += pc.sum(pc.binary_length(rows["value"])).as_py() or 0

    def flush(self) -> Receipt:
        """Wait for every ack, and commit."""
        with self._attempt():
            self._commit()
        return self._receipt()

    def _commit(self) -> None:
        publisher = self._opened()
        if publisher.within_s is None:
            return
        topic = ledger.topic_of(self._settings, self._name)
        for key in self._changed:
            publisher.put(topic, 0, key=key, value=self._copied[key].dump())
        publisher.settle()
        publisher.commit()
        self._changed.clear()
        self._pending = 0

    def close(self) -> None:
        """Let go of both sides; a transaction that is open is given up."""
        super().close()
        source, self._source = self._source, None
        self._copied, self._changed, self._pending = {}, set(), 0
        if source is not None:
            source.close()

    def _tables(self) -> BrokerTables:
        if self._source is None:
            raise SinkUnreachableError(f"the sink of {self._name} is not open")
        return self._source


def _agree(source: BrokerTables, place: Place, held: Copied) -> bool:
    """Whether the last record copied is still the same; one that is gone does not say no."""
    last = list(source.records(place, held.next - 1, held.next))
    return all(_digest(rows) == held.last for rows in last)


def _digest(row: pa.RecordBatch) -> int:
    (one,) = row.to_pylist()
    return digest(one["timestamp"], one["key"], one["value"], headers.parse(one["headers"]))


def _runs(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The stretches in which offsets follow one another."""
    breaks = 1 + np.flatnonzero(np.diff(offsets) != 1)
    for first, end in pairwise([0, *breaks.tolist(), len(offsets)]):
        yield int(offsets[first]), int(offsets[end - 1]) + 1


def _by_place(records: pa.RecordBatch) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """The records of each partition, in their order."""
    topics = records["topic"].to_numpy().astype(np.int64)
    places = topics << 32 | records["partition"].to_numpy()
    found, inverse = np.unique(places, return_inverse=True)
    if len(found) == 1:
        yield (int(found[0] >> 32), int(found[0] & 0xFFFFFFFF)), records
        return
    for number, place in enumerate(found.tolist()):
        rows = np.flatnonzero(inverse == number)
        yield (place >> 32, place & 0xFFFFFFFF), records.take(rows)


def _outgoing(topic: str, partition: int, rows: pa.RecordBatch) -> Iterator[Outgoing]:
    plain = rows["headers"].null_count == rows.num_rows
    return zip(
        repeat(topic),
        rows["value"].to_pylist(),
        rows["key"].to_pylist(),
        repeat(partition),
        (b"%d" % offset for offset in rows["offset"].to_pylist()),
        rows["timestamp"].to_pylist(),
        repeat(None) if plain else map(headers.parse, rows["headers"].to_pylist()),
        strict=False,
    )
