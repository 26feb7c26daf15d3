"""`Shadow`: the sink that copies records of the broker to Kafka, each once and in order.

It keeps the contract of `tailrace.shadow.contract`. A flush is one Kafka transaction, with the
ledger records in it. The producer has one transactional id per pipeline, so opening it fences the
previous owner. A sink that stays open between micro-batches starts each with an empty ledger
record: if Kafka refuses it, the sink connects again and reads the ledger back.

If Kafka refuses a topic (a record that is too large, a missing right, other records in it), the
transaction is aborted, and repeated with one transaction per topic. Topics that fail again are
skipped until their reason no longer holds (`tailrace.shadow.refusals`), and only they.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, repeat
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow.compute as pc
import structlog

from tailrace.broker.tables import headers
from tailrace.errors import DivergedError, SinkRefusedError, SinkUnreachableError, TailraceError
from tailrace.shadow import ledger, target
from tailrace.shadow.ledger import PartitionCopy
from tailrace.shadow.refusals import REFUSED, RETRY_S, Refusals
from tailrace.shadow.source import BrokerTables, record_digest
from tailrace.sinks.contract import Receipt
from tailrace.sinks.kafka import positions
from tailrace.sinks.kafka.producing import ProducerSink
from tailrace.sinks.kafka.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.position import Position
    from tailrace.shadow.settings import ShadowSink
    from tailrace.shadow.source import BrokerTopic, PartitionKey
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
        self._written: list[pa.RecordBatch] = []
        """Everything since the last flush, or since `_write_by_topic` has committed it."""
        self._committed = Receipt()
        """What `_write_by_topic` has committed since the last flush."""
        self._refusals = Refusals()
        self._resumed: set[str] = set()
        """Uuids of topics that are no longer refused once the open transaction is committed."""

    def open(self, after: Position) -> None:  # noqa: ARG002 - offsets decide, not positions
        """Connect, and read back the progress of each partition."""
        try:
            if self._publisher is None or self._changed or not self._is_owner():
                self._connect()
            self._topics = self._tables().topics()
            self._written, self._committed = [], Receipt()
            self._forget_refusals()
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
        found = ledger.read_all(settings, name=name)
        self._copies = found.copies
        self._refusals.load(found.refusals)
        self._check_source(self._source)

    def _check_source(self, source: BrokerTables) -> None:
        """Refuse a database whose records differ from the copy.

        The copy may be shorter than the database. If it is ahead, or its last record differs, the
        database was restored to an earlier time, or is another one. A topic that was then deleted
        in Kafka is copied again from its first record.
        """
        extents, topics = source.extents(), source.topics()
        self._forget_deleted(topics.values())
        for topic in topics.values():
            if not topic.enabled:
                continue
            for partition in range(topic.partitions):
                copy = self._copies.get(ledger.key_of(topic.uuid, partition))
                extent = extents.get((topic.id, partition))
                if copy is None or extent is None or not copy.runs:
                    continue
                if source.agrees((topic.id, partition), extent, copy):
                    continue
                if not self._targets.is_deleted(topic):
                    raise DivergedError(
                        f"partition {partition} of topic {topic.name} has another record at offset "
                        f"{copy.next - 1} in PostgreSQL than in Kafka: the database was restored "
                        "to an earlier time, or is not the one that was copied",
                        hint="Delete the topic in Kafka, then start again: it is copied from its "
                        f"first record. Or do not copy it: tailrace shadow off {topic.name}",
                    )
                self._forget(topic)
                break

    def _forget_deleted(self, topics: Collection[BrokerTopic]) -> None:
        """Forget the copies of topics that were deleted in Kafka, whether or not they agree."""
        copies = [
            (partition, copy)
            for topic in topics
            if topic.enabled
            for partition in range(topic.partitions)
            if (copy := self._copies.get(ledger.key_of(topic.uuid, partition))) and copy.runs
        ]
        gone = self._targets.gone(copies)
        for topic in topics:
            if topic.name in gone:
                structlog.get_logger().warning("shadow.topic_deleted", topic=topic.name)
                self._forget(topic)

    def _forget(self, topic: BrokerTopic) -> None:
        """Copy a topic from its first record again."""
        for partition in range(topic.partitions):
            self._copies.pop(ledger.key_of(topic.uuid, partition), None)

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
            self._written.append(batch)
            try:
                self._write(batch)
            except REFUSED:
                self._write_by_topic(self._written)

    def _write(self, batch: pa.RecordBatch, topic_id: int | None = None) -> None:
        """Send the records of all topics, or of one."""
        requests = batch.filter(pc.is_null(batch["topic"]))["value"]
        for content in requests.to_pylist():
            for topic, partition, end in orjson.loads(content):
                if topic_id in (None, topic):
                    self._copy_before((topic, partition), end)
        records = batch.filter(pc.is_valid(batch["topic"]))
        for key, rows in _by_partition(records):
            if topic_id in (None, key[0]):
                self._write_partition(key, rows)

    def _write_by_topic(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write batches again, each topic in a transaction of its own; refuse those that fail."""
        committed = self._committed
        self._connect()
        for topic_id in _topic_ids(batches):
            try:
                for batch in batches:
                    self._write(batch, topic_id)
                self._commit()
            except REFUSED as error:
                self._connect()
                self._refuse(self._topics[topic_id], error)
            else:
                committed = _sum(committed, self._receipt())
        self._committed = committed

    def _refuse(self, topic: BrokerTopic, error: TailraceError) -> None:
        refusal = self._refusals.add(topic, error)
        publisher = self._require_open()
        publisher.begin()
        publisher.put(
            ledger.topic_of(self._settings, self._name), 0,
            key=ledger.refusal_key_of(topic.uuid), value=ledger.dump_refusal(refusal),
        )  # fmt: skip
        publisher.drain()
        publisher.commit()
        structlog.get_logger().error(
            "shadow.topic_refused", topic=topic.name, code=error.code, reason=str(error),
            hint=error.hint, retry_in_s=RETRY_S,
        )  # fmt: skip

    def _forget_refusals(self) -> None:
        """Forget topics that were dropped or switched off."""
        copied = self._copied_uuids()
        self._resumed |= {uuid for uuid in self._refusals if uuid not in copied}

    def _copied_uuids(self) -> set[str]:
        return {topic.uuid for topic in self._topics.values() if topic.enabled}

    def _write_partition(self, key: PartitionKey, rows: pa.RecordBatch) -> None:
        """Send records of one partition, after all older ones, without those that are copied."""
        topic = self._copied_topic(key[0])
        if topic is None:
            self._skipped += rows.num_rows
            return
        if self._refusals.waits(topic.uuid):
            return
        self._copy_missing(topic, key[1], rows["offset"][0].as_py())
        next_offset = max(self._copy(topic, key[1]).next, topic.start(key[1]))
        duplicates = int(np.searchsorted(rows["offset"].to_numpy(), next_offset))
        self._skipped += duplicates
        self._send(topic, key[1], rows.slice(duplicates))

    def _copy_before(self, key: PartitionKey, end: int) -> None:
        """Copy the missing records before `end` on request; a refused topic is tried again."""
        topic = self._copied_topic(key[0])
        if topic is not None:
            self._refusals.make_due(topic.uuid)
            self._copy_missing(topic, key[1], end)

    def _copied_topic(self, topic_id: int) -> BrokerTopic | None:
        """The topic; None if it is not copied."""
        if topic_id not in self._topics:
            # The topic is new, or was dropped.
            self._topics = self._tables().topics()
        topic = self._topics.get(topic_id)
        return topic if topic is not None and topic.enabled else None

    def _copy_missing(self, topic: BrokerTopic, partition: int, end: int) -> None:
        """Copy the missing records before `end` from the table."""
        if topic.uuid in self._refusals:
            self._resumed.add(topic.uuid)
        first = max(self._copy(topic, partition).next, topic.start(partition))
        if first < end:
            for rows in self._tables().records((topic.id, partition), first, end):
                self._send(topic, partition, rows)
                if self._pending >= _COMMIT_ROWS:
                    self._commit()

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
        if not self._targets.is_empty(topic, partition):
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
        last = record_digest(rows.slice(rows.num_rows - 1))
        for first, end in _runs(rows["offset"].to_numpy()):
            copy = copy.with_records(first, end, last)
        self._copies[key] = copy
        self._changed.add(key)
        self._pending += rows.num_rows
        self._rows += rows.num_rows
        self._bytes += pc.sum(pc.binary_length(rows["value"])).as_py() or 0

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait for every acknowledgement, and commit."""
        del end
        with self._attempt():
            try:
                self._commit()
            except REFUSED:
                self._write_by_topic(self._written)
        receipt = _sum(self._committed, self._receipt())
        self._written, self._committed = [], Receipt()
        return replace(receipt, refusals=self._refusals.present())

    def _commit(self) -> None:
        publisher = self._require_open()
        if self._resumed:
            publisher.begin()
        if publisher.transaction_age_s is None:
            return
        topic = ledger.topic_of(self._settings, self._name)
        for key in self._changed:
            publisher.put(topic, 0, key=key, value=self._copies[key].dump())
        for uuid in self._resumed:
            publisher.put(topic, 0, key=ledger.refusal_key_of(uuid), value=b"")
        publisher.drain()
        publisher.commit()
        for uuid in self._resumed:
            refusal = self._refusals.remove(uuid)
            if refusal is not None and uuid in self._copied_uuids():
                structlog.get_logger().info("shadow.topic_resumed", topic=refusal.destination)
        self._changed, self._resumed, self._pending = set(), set(), 0

    def close(self) -> None:
        """Disconnect from both sides. An open transaction is aborted."""
        super().close()
        source, self._source = self._source, None
        self._copies, self._changed, self._pending = {}, set(), 0
        self._written, self._committed, self._resumed = [], Receipt(), set()
        if source is not None:
            source.close()

    def _tables(self) -> BrokerTables:
        if self._source is None:
            raise SinkUnreachableError(f"the sink of {self._name} is not open")
        return self._source


def _topic_ids(batches: Sequence[pa.RecordBatch]) -> list[int]:
    """The topics of records and of copy requests."""
    found: set[int] = set()
    for batch in batches:
        found.update(pc.unique(batch["topic"].drop_null()).to_pylist())
        for content in batch.filter(pc.is_null(batch["topic"]))["value"].to_pylist():
            found.update(topic for topic, _, _ in orjson.loads(content))
    return sorted(found)


def _sum(left: Receipt, right: Receipt) -> Receipt:
    return Receipt(
        messages=left.messages + right.messages,
        bytes=left.bytes + right.bytes,
        duplicates=left.duplicates + right.duplicates,
    )


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
