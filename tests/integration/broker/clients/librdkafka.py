"""`confluent-kafka`."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.integration.broker.clients.client import (
    LONG_S,
    Client,
    GroupDescription,
    Record,
    kafka_name,
)

if TYPE_CHECKING:
    from tests.integration.broker.clients.client import Acks, Reset


class Librdkafka(Client):
    """C, and Python around it."""

    def produce(
        self,
        topic: str,
        records: list[Record],
        *,
        acks: Acks = "all",
        compression: str = "none",
        patience_s: float = LONG_S,
    ) -> list[int]:
        offsets: list[int] = []

        def told(error: Any, message: Any) -> None:
            if error is not None:
                raise confluent_kafka.KafkaException(error)
            offsets.append(message.offset() if message.offset() is not None else -1)

        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": str(acks),
                "compression.type": compression,
                "enable.idempotence": acks == "all",
                "linger.ms": 5,
                "message.max.bytes": 100_000_000,
                "topic.metadata.propagation.max.ms": int(patience_s * 500),
            }
            | self.login.librdkafka()
        )
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                on_delivery=told,
                timestamp=record.timestamp,
                headers=list(record.headers),
            )
        assert producer.flush(LONG_S) == 0
        return offsets

    def _consumer(self, group: str = "unused", **settings: Any) -> confluent_kafka.Consumer:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                **given,
            }
            | self.login.librdkafka()
        )

    def consume(
        self,
        topic: str,
        count: int,
        *,
        group: str | None = None,
        start: int | None = None,
        reset: Reset = "earliest",
    ) -> list[Record]:
        policy = "error" if reset == "none" else reset
        consumer = self._consumer(group or "unused", auto_offset_reset=policy)
        try:
            if start is not None:
                consumer.assign([TopicPartition(topic, 0, start)])
            elif group is None:
                parts = consumer.list_topics(topic, LONG_S).topics[topic].partitions
                first = confluent_kafka.OFFSET_BEGINNING
                consumer.assign([TopicPartition(topic, number, first) for number in parts])
            else:
                consumer.subscribe([topic])
            found = _read(consumer, count)
            if group is not None:
                consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found

    def commit(self, group: str, topic: str, offset: int, metadata: str = "") -> None:
        consumer = self._consumer(group)
        at = TopicPartition(topic, 0, offset, metadata)
        try:
            for done in consumer.commit(offsets=[at], asynchronous=False) or ():
                if done.error is not None:
                    raise confluent_kafka.KafkaException(done.error)
        finally:
            consumer.close()

    def committed(self, group: str, topic: str) -> tuple[int, str] | None:
        consumer = self._consumer(group)
        (found,) = consumer.committed([TopicPartition(topic, 0)], LONG_S)
        consumer.close()
        return None if found.offset < 0 else (found.offset, found.metadata or "")

    def bounds(self, topic: str) -> tuple[int, int]:
        consumer = self._consumer()
        first, following = consumer.get_watermark_offsets(TopicPartition(topic, 0), LONG_S)
        consumer.close()
        return first, following

    def at_times(self, topic: str, times: list[int]) -> list[int | None]:
        consumer = self._consumer()
        wanted = [TopicPartition(topic, 0, ms) for ms in times]
        found = [consumer.offsets_for_times([each], timeout=LONG_S)[0].offset for each in wanted]
        consumer.close()
        return [None if offset < 0 else offset for offset in found]

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, **self.login.librdkafka()}
        )

    def create(self, topic: str, partitions: int, settings: dict[str, str]) -> None:
        made = self._admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])
        made[topic].result(LONG_S)

    def partitions(self, topic: str) -> int:
        found = self._admin.list_topics(topic, LONG_S).topics[topic]
        if found.error is not None:
            raise confluent_kafka.KafkaException(found.error)
        return len(found.partitions)

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(LONG_S)

    def cut(self, topic: str, offset: int) -> int:
        at = TopicPartition(topic, 0, offset)
        left: int = self._admin.delete_records([at])[at].result(LONG_S).low_watermark
        return left

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(LONG_S)

    def settings(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = self._admin.describe_configs([resource])[resource].result(LONG_S)
        return {name: entry.value for name, entry in found.items()}

    def alter(self, topic: str, name: str, value: str) -> None:
        change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        self._admin.incremental_alter_configs([resource])[resource].result(LONG_S)

    def groups(self) -> set[str]:
        listed = self._admin.list_consumer_groups().result(LONG_S).valid
        return {group.group_id for group in listed}

    def group(self, name: str) -> GroupDescription:
        found = self._admin.describe_consumer_groups([name])[name].result(LONG_S)
        return GroupDescription(
            found.state.name.title(), tuple(each.client_id for each in found.members)
        )

    def delete_group(self, name: str) -> None:
        self._admin.delete_consumer_groups([name])[name].result(LONG_S)

    def refusal(self, error: BaseException) -> str:
        assert isinstance(error, confluent_kafka.KafkaException), error
        cause = error.args[0]
        # Below 0 are librdkafka's own.
        return kafka_name(cause.code()) if cause.code() > 0 else str(cause.name())


def _read(consumer: confluent_kafka.Consumer, count: int) -> list[Record]:
    found: list[Record] = []
    deadline = time.monotonic() + LONG_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        for message in consumer.consume(count - len(found), 1):
            if (error := message.error()) is not None:
                raise confluent_kafka.KafkaException(error)
            found.append(_record(message))
    return found


def _record(message: Any) -> Record:
    return Record(
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        message.timestamp()[1],
        message.partition(),
        message.offset(),
    )
