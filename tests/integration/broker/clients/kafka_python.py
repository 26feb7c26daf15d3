"""`kafka-python`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import kafka
import kafka.errors
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import OffsetAndMetadata

from tests.integration.broker.clients.client import (
    LONG_S,
    Client,
    GroupDescription,
    Record,
    kafka_name,
)

if TYPE_CHECKING:
    from tests.integration.broker.clients.client import Acks, Reset


class KafkaPython(Client):
    """Python and threads."""

    def produce(
        self,
        topic: str,
        records: list[Record],
        *,
        acks: Acks = "all",
        compression: str = "none",
        patience_s: float = LONG_S,
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks=acks,
            compression_type=None if compression == "none" else compression,
            enable_idempotence=acks == "all",
            max_request_size=100_000_000,
            max_block_ms=int(patience_s * 1000),
            **self.login.python(),
        )
        try:
            waiting = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    list(record.headers),
                    record.partition,
                    record.timestamp,
                )
                for record in records
            ]
            producer.flush(LONG_S)
            return [each.get(LONG_S).offset for each in waiting]
        finally:
            producer.close()

    def _consumer(self, *topics: str, **settings: Any) -> Any:
        return closing(
            KafkaConsumer(
                *topics,
                bootstrap_servers=self.bootstrap,
                enable_auto_commit=False,
                consumer_timeout_ms=LONG_S * 1000,
                **self.login.python(),
                **settings,
            )
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
        topics = (topic,) if start is None else ()
        with self._consumer(*topics, group_id=group, auto_offset_reset=reset) as consumer:
            if start is not None:
                consumer.assign([TopicPartition(topic, 0)])
                consumer.seek(TopicPartition(topic, 0), start)
            found = [_record(message) for _, message in zip(range(count), consumer, strict=False)]
            if group is not None:
                consumer.commit()
        return found

    def commit(self, group: str, topic: str, offset: int, metadata: str = "") -> None:
        at = TopicPartition(topic, 0)
        with self._consumer(group_id=group) as consumer:
            consumer.assign([at])
            consumer.commit({at: OffsetAndMetadata(offset, metadata, -1)})

    def committed(self, group: str, topic: str) -> tuple[int, str] | None:
        with self._consumer(group_id=group) as consumer:
            found = consumer.committed(TopicPartition(topic, 0), metadata=True)
        return None if found is None else (found.offset, found.metadata)

    def bounds(self, topic: str) -> tuple[int, int]:
        at = TopicPartition(topic, 0)
        with self._consumer() as consumer:
            return consumer.beginning_offsets([at])[at], consumer.end_offsets([at])[at]

    def at_times(self, topic: str, times: list[int]) -> list[int | None]:
        at = TopicPartition(topic, 0)
        with self._consumer() as consumer:
            found = [consumer.offsets_for_times({at: ms})[at] for ms in times]
        return [None if each is None else each.offset for each in found]

    def _ask(self, call: str, *given: Any, **more: Any) -> Any:
        with closing(
            KafkaAdminClient(bootstrap_servers=self.bootstrap, **self.login.python())
        ) as admin:
            return getattr(admin, call)(*given, **more)

    def create(self, topic: str, partitions: int, settings: dict[str, str]) -> None:
        new = {"num_partitions": partitions, "replication_factor": 1, "configs": settings}
        self._ask("create_topics", {topic: new})

    def partitions(self, topic: str) -> int:
        (found,) = self._ask("describe_topics", [topic])
        if found["error_code"]:
            raise kafka.errors.for_code(found["error_code"])
        return len(found["partitions"])

    def grow(self, topic: str, partitions: int) -> None:
        self._ask("create_partitions", {topic: partitions})

    def cut(self, topic: str, offset: int) -> int:
        at = TopicPartition(topic, 0)
        left: int = self._ask("delete_records", {at: offset})[at]["low_watermark"]
        return left

    def delete(self, topic: str) -> None:
        self._ask("delete_topics", [topic])

    def settings(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = self._ask("describe_configs", [resource], config_filter="all")["topic"][topic]
        return {name: entry["value"] for name, entry in found.items()}

    def alter(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        answer = self._ask("alter_configs", [resource], raise_on_unknown=False)["topic"][topic]
        _check(answer)

    def groups(self) -> set[str]:
        return {group["group_id"] for group in self._ask("list_groups")}

    def group(self, name: str) -> GroupDescription:
        found = self._ask("describe_groups", [name])[name]
        members = tuple(each["client_id"] for each in found["members"])
        return GroupDescription(found["group_state"], members)

    def delete_group(self, name: str) -> None:
        _check(self._ask("delete_groups", [name])[name])

    def refusal(self, error: BaseException) -> str:
        assert isinstance(error, kafka.errors.KafkaError | ValueError), error
        code: int = getattr(error, "errno", -1)
        return kafka_name(code) if code > 0 else type(error).__name__


def _check(answer: str) -> None:
    """Some errors are texts only: `[Error 40] InvalidConfigurationError: ...`."""
    if answer != "OK":
        names = answer.replace(":", " ").split()
        raise next(getattr(kafka.errors, each) for each in names if hasattr(kafka.errors, each))


def _record(message: Any) -> Record:
    headers = tuple(message.headers or ())
    return Record(
        message.key, message.value, headers, message.timestamp, message.partition, message.offset
    )
