"""`aiokafka`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code
from aiokafka.structs import OffsetAndMetadata

from tests.integration.broker.clients.client import (
    LONG_S,
    Client,
    GroupDescription,
    Record,
    kafka_name,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.broker.clients.client import Acks, Reset


class Aiokafka(Client):
    """Python and asyncio."""

    def produce(
        self,
        topic: str,
        records: list[Record],
        *,
        acks: Acks = "all",
        compression: str = "none",
        patience_s: float = LONG_S,
    ) -> list[int]:
        async def run() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                **self.login.python(),
                acks=acks,
                compression_type=None if compression == "none" else compression,
                enable_idempotence=acks == "all",
                max_request_size=100_000_000,
                request_timeout_ms=int(patience_s * 1000),
            )
            await producer.start()
            try:
                waiting = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        record.partition,
                        record.timestamp,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                done = [await each for each in waiting]
            finally:
                await producer.stop()
            return [each.offset if each is not None else -1 for each in done]

        return asyncio.run(run())

    @asynccontextmanager
    async def _consumer(self, *topics: str, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            *topics,
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            session_timeout_ms=60_000,
            **self.login.python(),
            **settings,
        )
        await consumer.start()
        try:
            async with asyncio.timeout(LONG_S):
                yield consumer
        finally:
            await consumer.stop()

    def consume(
        self,
        topic: str,
        count: int,
        *,
        group: str | None = None,
        start: int | None = None,
        reset: Reset = "earliest",
    ) -> list[Record]:
        async def run() -> list[Record]:
            topics = (topic,) if start is None else ()
            async with self._consumer(*topics, group_id=group, auto_offset_reset=reset) as consumer:
                if start is not None:
                    consumer.assign([TopicPartition(topic, 0)])
                    consumer.seek(TopicPartition(topic, 0), start)
                found = [_record(await consumer.getone()) for _ in range(count)]
                if group is not None:
                    await consumer.commit()
            return found

        return asyncio.run(run())

    def commit(self, group: str, topic: str, offset: int, metadata: str = "") -> None:
        async def run() -> None:
            async with self._consumer(group_id=group) as consumer:
                at = TopicPartition(topic, 0)
                consumer.assign([at])
                await consumer.commit({at: OffsetAndMetadata(offset, metadata)})

        asyncio.run(run())

    def committed(self, group: str, topic: str) -> tuple[int, str] | None:
        async def run() -> tuple[int, str] | None:
            at = TopicPartition(topic, 0)
            async with self._admin() as admin:
                found = (await admin.list_consumer_group_offsets(group, partitions=[at]))[at]
            return None if found.offset < 0 else (found.offset, found.metadata)

        return asyncio.run(run())

    def bounds(self, topic: str) -> tuple[int, int]:
        async def run() -> tuple[int, int]:
            at = TopicPartition(topic, 0)
            async with self._consumer() as consumer:
                first = await consumer.beginning_offsets([at])
                following = await consumer.end_offsets([at])
            return first[at], following[at]

        return asyncio.run(run())

    def at_times(self, topic: str, times: list[int]) -> list[int | None]:
        async def run() -> list[int | None]:
            at = TopicPartition(topic, 0)
            async with self._consumer() as consumer:
                found = [(await consumer.offsets_for_times({at: ms}))[at] for ms in times]
            return [None if each is None else each.offset for each in found]

        return asyncio.run(run())

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap, **self.login.python())
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    def _ask(self, call: str, *given: Any) -> Any:
        async def run() -> Any:
            async with self._admin() as admin:
                return await getattr(admin, call)(*given)

        return asyncio.run(run())

    def create(self, topic: str, partitions: int, settings: dict[str, str]) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=settings)
        _check(self._ask("create_topics", [new]).topic_errors[0][1])

    def partitions(self, topic: str) -> int:
        (found,) = self._ask("describe_topics", [topic])
        _check(found["error_code"])
        return len(found["partitions"])

    def grow(self, topic: str, partitions: int) -> None:
        self._ask("create_partitions", {topic: NewPartitions(partitions)})

    def cut(self, topic: str, offset: int) -> int:
        at = TopicPartition(topic, 0)
        left: int = self._ask("delete_records", {at: RecordsToDelete(offset)})[at]
        return left

    def delete(self, topic: str) -> None:
        _check(self._ask("delete_topics", [topic]).topic_error_codes[0][1])

    def settings(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        ((code, _, _, _, entries),) = self._ask("describe_configs", [resource])[0].resources
        _check(code)
        return {entry[0]: entry[1] for entry in entries}

    def alter(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        _check(self._ask("alter_configs", [resource])[0].resources[0][0])

    def groups(self) -> set[str]:
        return {name for name, *_ in self._ask("list_consumer_groups")}

    def group(self, name: str) -> GroupDescription:
        (found,) = self._ask("describe_consumer_groups", [name])[0].to_object()["groups"]
        return GroupDescription(
            found["state"], tuple(each["client_id"] for each in found["members"])
        )

    def refusal(self, error: BaseException) -> str:
        # It asserts what it might have raised.
        assert isinstance(error, KafkaError | AssertionError), error
        code: int = getattr(error, "errno", -1)
        return kafka_name(code) if code > 0 else type(error).__name__


def _check(code: int) -> None:
    """Some answers are handed to the caller as they are."""
    if code:
        raise for_code(code)


def _record(message: Any) -> Record:
    headers = tuple(message.headers or ())
    return Record(
        message.key, message.value, headers, message.timestamp, message.partition, message.offset
    )
