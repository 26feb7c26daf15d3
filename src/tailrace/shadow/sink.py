"""`Shadow`: the sink that copies records of the broker to Kafka, each once and in order.

It keeps the contract of `tailrace.shadow.contract`. A flush is one Kafka transaction, with the
ledger records in it. The producer has one transactional id per pipeline, so opening it fences the
previous owner. A sink that stays open between micro-batches starts each with an empty ledger
record: if Kafka refuses it, the sink connects again and reads the ledger back.
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
from tailrace.shadow.ledger import PartitionCopy, digest
from tailrace.shadow.source import BrokerTables
from tailrace.sinks.kafka import positions
from tailrace.sinks.kafka.producing import ProducerSink
from tailrace.sinks.kafka.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.position import Position
    from tailrace.shadow.settings import ShadowSink
    from tailrace.shadow.source import BrokerTopic, PartitionKey
    from tailrace.sinks.contract import Receipt
    from tailrace.sinks.kafka.publisher import Outgoing

_COMMIT_ROWS = 200_000
"""Old records are committed at this interval: Kafka limits the duration of a transaction."""


class Shadow(ProducerSink):
    """Copies records to Kafka topics of the same names. `name` is the name of the pipeline."""

    def __init__(self, settings: ShadowSink, *, name: str) -> None:
        super().__init__(name)
        self._settings = settings
        self._source: BrokerTables | None = None
        self._targets = target.Targets(settings, name=name)
        self._topics: dict[int, BrokerTopic] = {}
        self._copies: dict[bytes, PartitionCopy] = {}
        """By ledger key; includes the open transaction."""
        self._changed: set[bytes] = set()
        """Ledger keys of the open transaction."""
        self._pending = 0
        """Records of the open transaction."""

    def open(self, after: Position) -> None:  # noqa: ARG002 - offsets decide, not positions
        """Connect, and read back the progress of each partition."""
        try:
            if self._publisher is None or self._changed or not self._is_owner():
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
        positions.ensure_topic(settings, ledger.topic_of(settings, name), name=name, partitions=1)
        publisher.fence()
        self._copies = ledger.read(settings, name=name)
        self._check_source(self._source)

    def _check_source(self, source: BrokerTables) -> None:
        """Refuse a database whose records differ from the copy.

        The copy may be shorter than the database. If it is ahead, or its last record differs, the
        database was restored to an earlier time, or is another one.
        """
        extents = source.extents()
        for topic in source.topics().values():
            for partition in range(topic.partitions):
                copy = self._copies.get(ledger.key_of(topic.uuid, partition))
                extent = extents.get((topic.id, partition))
                if not topic.enabled or copy is None or extent is None or not copy.runs:
                    continue
                if copy.next > extent.next or not _same_last(source, (topic.id, partition), copy):
                    raise SinkRefusedError(
                        f"partition {partition} of topic {topic.name} has another record at offset "
                        f"{copy.next - 1} in PostgreSQL than in Kafka: the database was restored "
                        "to an earlier time, or is not the one that was copied",
                        hint="Delete the topic in Kafka and copy it under another pipeline name, "
                        f"or do not copy it: tailrace shadow off {topic.name}",
                    )

    def _is_owner(self) -> bool:
        """Whether this producer may still write. Begins a transaction to find out."""
        try:
            publisher, topic = self._require_open(), ledger.topic_of(self._settings, self._name)
            publisher.begin()
            publisher.put(topic, 0, key=ledger.OWNER, value=b"")
            publisher.drain()
        except TailraceError:
            return False
        return True

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the records that Kafka does not have yet."""
        with self._attempt():
            requests = batch.filter(pc.is_null(batch["topic"]))["value"]
            for content in requests.to_pylist():
                for topic, partition, end in orjson.loads(content):
                    self._copy_before((topic, partition), end)
            records = batch.filter(pc.is_valid(batch["topic"]))
            for key, rows in _by_partition(records):
                self._write_partition(key, rows)

    def _write_partition(self, key: PartitionKey, rows: pa.RecordBatch) -> None:
        """Send records of one partition, after all older ones, without those that are copied."""
        if not self._copy_before(key, rows["offset"][0].as_py()):
            self._skipped += rows.num_rows
            return
        topic = self._topics[key[0]]
        next_offset = max(self._copy(topic, key[1]).next, topic.start(key[1]))
        duplicates = int(np.searchsorted(rows["offset"].to_numpy(), next_offset))
        self._skipped += duplicates
        self._send(topic, key[1], rows.slice(duplicates))

    def _copy_before(self, key: PartitionKey, end: int) -> bool:
        """Copy the missing records before `end` from the table. False: the topic is not copied."""
        topic = self._topics.get(key[0])
        if topic is None:
            # The topic is new, or was dropped.
            self._topics = self._tables().topics()
            topic = self._topics.get(key[0])
        if topic is None or not topic.enabled:
            return False
        first = max(self._copy(topic, key[1]).next, topic.start(key[1]))
        if first < end:
            for rows in self._tables().records(key, first, end):
                self._send(topic, key[1], rows)
                if self._pending >= _COMMIT_ROWS:
                    self._commit()
        return True

    def _copy(self, topic: BrokerTopic, partition: int) -> PartitionCopy:
        key = ledger.key_of(topic.uuid, partition)
        copy = self._copies.get(key)
        if copy is None:
            self._ready(topic)
            copy = PartitionCopy(topic=topic.name, base=self._base(topic, partition))
            self._copies[key] = copy
        return copy

    def _ready(self, topic: BrokerTopic) -> None:
        if self._targets.ready(topic):
            # The producer may have cached fewer partitions.
            self._require_open().refresh_metadata(topic.name)

    def _base(self, topic: BrokerTopic, partition: int) -> int:
        """The Kafka offset of the first copied record: 0, unless the topic has other records."""
        if topic.append:
            return target.bounds(self._settings, topic.name, partition, name=self._name)[1]
        messages = target.committed(self._settings, topic.name, partition, name=self._name)
        if next(messages, None) is not None:
            raise SinkRefusedError(
                f"partition {partition} of topic {topic.name} has records in Kafka that this "
                "shadow did not copy",
                hint="Delete the topic in Kafka, or append to it: "
                f"tailrace shadow on {topic.name} --append",
            )
        return 0

    def _send(self, topic: BrokerTopic, partition: int, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._ready(topic)
        publisher = self._require_open()
        publisher.begin()
        publisher.publish(_outgoing(topic.name, partition, rows))
        key = ledger.key_of(topic.uuid, partition)
        copy = self._copy(topic, partition)
        last = _digest(rows.slice(rows.num_rows - 1))
        for first, end in _runs(rows["offset"].to_numpy()):
            copy = copy.with_records(first, end, last)
        self._copies[key] = copy
        self._changed.add(key)
        self._pending += rows.num_rows
        self._rows += rows.num_rows
        self._bytes += pc.sum(pc.binary_length(rows["value"])).as_py() or 0

    def flush(self) -> Receipt:
        """Wait for every acknowledgement, and commit."""
        with self._attempt():
            self._commit()
        return self._receipt()

    def _commit(self) -> None:
        publisher = self._require_open()
        if publisher.transaction_age_s is None:
            return
        topic = ledger.topic_of(self._settings, self._name)
        for key in self._changed:
            publisher.put(topic, 0, key=key, value=self._copies[key].dump())
        publisher.drain()
        publisher.commit()
        self._changed.clear()
        self._pending = 0

    def close(self) -> None:
        """Disconnect from both sides. An open transaction is aborted."""
        super().close()
        source, self._source = self._source, None
        self._copies, self._changed, self._pending = {}, set(), 0
        if source is not None:
            source.close()

    def _tables(self) -> BrokerTables:
        if self._source is None:
            raise SinkUnreachableError(f"the sink of {self._name} is not open")
        return self._source


def _same_last(source: BrokerTables, key: PartitionKey, copy: PartitionCopy) -> bool:
    """Whether the last copied record is unchanged. A record that retention deleted counts as so."""
    last = list(source.records(key, copy.next - 1, copy.next))
    return all(_digest(rows) == copy.last for rows in last)


def _digest(row: pa.RecordBatch) -> int:
    (one,) = row.to_pylist()
    return digest(one["timestamp"], one["key"], one["value"], headers.parse(one["headers"]))


def _runs(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The ranges `[first, end)` of consecutive offsets: 5 6 7 9 → (5, 8), (9, 10)."""
    breaks = 1 + np.flatnonzero(np.diff(offsets) != 1)
    for first, end in pairwise([0, *breaks.tolist(), len(offsets)]):
        yield int(offsets[first]), int(offsets[end - 1]) + 1


def _by_partition(records: pa.RecordBatch) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
    """The records of each partition, in their order."""
    topics = records["topic"].to_numpy().astype(np.int64)
    keys = topics << 32 | records["partition"].to_numpy()
    unique, inverse = np.unique(keys, return_inverse=True)
    if len(unique) == 1:
        yield (int(unique[0] >> 32), int(unique[0] & 0xFFFFFFFF)), records
        return
    for number, key in enumerate(unique.tolist()):
        rows = np.flatnonzero(inverse == number)
        yield (key >> 32, key & 0xFFFFFFFF), records.take(rows)


def _outgoing(topic: str, partition: int, rows: pa.RecordBatch) -> Iterator[Outgoing]:
    without_headers = rows["headers"].null_count == rows.num_rows
    return zip(
        repeat(topic),
        rows["value"].to_pylist(),
        rows["key"].to_pylist(),
        repeat(partition),
        (b"%d" % offset for offset in rows["offset"].to_pylist()),
        rows["timestamp"].to_pylist(),
        repeat(None) if without_headers else map(headers.parse, rows["headers"].to_pylist()),
        strict=False,
    )
