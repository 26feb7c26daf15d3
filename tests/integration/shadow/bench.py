"""Both sides of a shadow: a topic in the broker's tables, and its copy in Kafka."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.broker.broker import install
from tailrace.broker.tables import headers
from tailrace.encode.records import RECORDS
from tailrace.position import ORIGIN
from tailrace.shadow import ledger
from tailrace.shadow.settings import ShadowSink
from tailrace.shadow.sink import Shadow
from tailrace.shadow.verify import verify
from tests import topics
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.shadow.comparison import Comparison
    from tailrace.sinks.contract import Receipt
    from tests.fix_postgres import Database

Record = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Milliseconds, key, value, headers."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A database with the broker's tables, a Kafka cluster, and the name of a topic."""

    database: Database
    bootstrap: str
    topic: str
    _sinks: list[Shadow] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.topic

    def settings(self, **given: Any) -> ShadowSink:
        return ShadowSink.model_validate(
            {
                "type": "shadow",
                "bootstrap": self.bootstrap,
                "dsn": self.database.dsn,
                "replicas": 1,
                "timeout_s": 120,
                **given,
            }
        )

    def sink(self, **given: Any) -> Shadow:
        sink = Shadow(self.settings(**given), name=self.name)
        self._sinks.append(sink)
        return sink

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def verify(self, wait_s: float = 0) -> Comparison:
        """Compare both sides, after the ledger's last transaction is complete."""
        if not wait_s:
            name = ledger.topic_of(self.settings(), self.name)
            if name in self.admin().list_topics(timeout=LONG_S).topics:
                topics.settle(self.bootstrap, [TopicPartition(name, 0)])
        return verify(self.settings(), name=self.name, wait_s=wait_s)

    def install(self) -> None:
        asyncio.run(install(self.database.dsn))

    def create_topic(self, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        # The timestamps are of 2023: the default retention would delete the records.
        text = json.dumps({"retention.ms": "-1"} | (config or {}))
        self.database.query(f"SELECT kafka.create_topic('{self.topic}', {partitions}, '{text}')")

    def produce(self, count: int, *, partition: int = 0) -> None:
        self.database.query(
            f"SELECT count(kafka.produce('{self.topic}', 'k' || n, 'v' || n, partition => "
            f'{partition}, "timestamp" => to_timestamp(1700000000 + n))) '
            f"FROM generate_series(1, {count}) n"
        )

    def stream(self, first: int = 0, end: int = 1 << 40) -> pa.RecordBatch:
        """The records of `[first, end)` as the log delivers them."""
        rows = self.database.query(
            'SELECT topic_id, partition_id, "offset", '
            'floor(extract(epoch FROM "timestamp") * 1000)::bigint, key, value, headers::text '
            f'FROM kafka.messages WHERE "offset" >= {first} AND "offset" < {end} '
            'ORDER BY topic_id, partition_id, "offset"'
        )
        numbered = [(*row, 100 + number, 0, 0) for number, row in enumerate(rows)]
        return batch(numbered)

    def broker_records(self, partition: int = 0) -> list[Record]:
        """The records in the broker's table."""
        rows = self.database.query(
            'SELECT floor(extract(epoch FROM "timestamp") * 1000)::bigint, key, value, '
            "headers::text FROM kafka.records "
            f"WHERE topic = '{self.topic}' AND partition = {partition} ORDER BY \"offset\""
        )
        return [(moment, key, value, headers.parse(text)) for moment, key, value, text in rows]

    def kafka_records(self, partition: int = 0, **options: bool) -> list[Record]:
        """The records in the Kafka topic. The options of `topics.messages`."""
        found: list[Record] = []
        for message in topics.messages(self.bootstrap, self.topic, partition=partition, **options):
            given: Any = message.headers() or []
            key: Any = message.key()
            value: Any = message.value()
            found.append((message.timestamp()[1], key, value, list(given)))
        return found

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_kafka_topic(self, partitions: int = 1) -> None:
        admin = self.admin()
        admin.create_topics([NewTopic(self.topic, partitions, 1)])[self.topic].result(LONG_S)

    def delete_copy(self) -> None:
        """Delete the topic in Kafka."""
        admin = self.admin()
        admin.delete_topics([self.topic])[self.topic].result(LONG_S)
        wait_for(lambda: self.topic not in admin.list_topics(timeout=LONG_S).topics, "the deletion")


def batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(RECORDS)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(list(values), field.type)
            for values, field in zip(columns, RECORDS, strict=True)
        ],
        schema=RECORDS,
    )


def copy_request(*places: tuple[int, int, int]) -> pa.RecordBatch:
    """A copy request as `kafka.shadow_sweep` writes it."""
    content = json.dumps(places).encode()
    return batch([(None, None, None, None, None, content, None, 99, 0, 0)])


def deliver(sink: Shadow, given: pa.RecordBatch) -> Receipt:
    sink.open(ORIGIN)
    sink.write(given)
    return sink.flush()
