"""Stock clients behind one face, so that each scenario runs with all of them."""

from __future__ import annotations

import asyncio
import atexit
import base64
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import confluent_kafka
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tailrace.testing.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Sequence

Acks = Literal[0, 1, "all"]
Headers = tuple[tuple[str, bytes | None], ...]
LONG_S = 60


@dataclass(frozen=True, slots=True)
class Record:
    """What goes in, or comes out."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int = 1_700_000_000_000
    partition: int = 0
    offset: int = field(default=-1, compare=False)


class Client(ABC):
    """A client library."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def produce(
        self, topic: str, records: list[Record], *, acks: Acks = "all", compression: str = "none"
    ) -> list[int]:
        """The offsets they got; -1 where the client is not told."""

    @abstractmethod
    def consume(self, topic: str, count: int, *, group: str | None = None) -> list[Record]:
        """So many from the beginning, or from where the group stands; commits them."""


class Librdkafka(Client):
    """`confluent-kafka`."""

    def produce(
        self, topic: str, records: list[Record], *, acks: Acks = "all", compression: str = "none"
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
            }
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

    def consume(self, topic: str, count: int, *, group: str | None = None) -> list[Record]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group or "unused",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        if group is None:
            parts = consumer.list_topics(topic, LONG_S).topics[topic].partitions
            first = confluent_kafka.OFFSET_BEGINNING
            consumer.assign([confluent_kafka.TopicPartition(topic, n, first) for n in parts])
        else:
            consumer.subscribe([topic])
        found: list[Record] = []
        deadline = time.monotonic() + LONG_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            for message in consumer.consume(count - len(found), 1):
                assert message.error() is None, message.error()
                found.append(_told(message))
        if group is not None:
            consumer.commit(asynchronous=False)
        consumer.close()
        return found


class Aiokafka(Client):
    """`aiokafka`."""

    def produce(
        self, topic: str, records: list[Record], *, acks: Acks = "all", compression: str = "none"
    ) -> list[int]:
        async def run() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks=acks,
                compression_type=None if compression == "none" else compression,
                enable_idempotence=acks == "all",
                max_request_size=100_000_000,
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

    def consume(self, topic: str, count: int, *, group: str | None = None) -> list[Record]:
        async def run() -> list[Record]:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=self.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            await consumer.start()
            found: list[Record] = []
            try:
                async with asyncio.timeout(LONG_S):
                    while len(found) < count:
                        found.append(_record(await consumer.getone()))
                if group is not None:
                    await consumer.commit()
            finally:
                await consumer.stop()
            return found

        return asyncio.run(run())


class KafkaPython(Client):
    """`kafka-python`."""

    def produce(
        self, topic: str, records: list[Record], *, acks: Acks = "all", compression: str = "none"
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks=acks,
            compression_type=None if compression == "none" else compression,
            enable_idempotence=acks == "all",
            max_request_size=100_000_000,
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

    def consume(self, topic: str, count: int, *, group: str | None = None) -> list[Record]:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=LONG_S * 1000,
        )
        try:
            found = []
            for message in consumer:
                found.append(_record(message))
                if len(found) == count:
                    break
            if group is not None:
                consumer.commit()
        finally:
            consumer.close()
        return found


def _told(message: Any) -> Record:
    return Record(
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        message.timestamp()[1],
        message.partition(),
        message.offset(),
    )


def _record(message: Any) -> Record:
    headers = tuple(message.headers or ())
    return Record(
        message.key, message.value, headers, message.timestamp, message.partition, message.offset
    )


class Java(Client):
    """Apache Kafka's own, behind `JavaClient.java`."""

    def produce(
        self, topic: str, records: list[Record], *, acks: Acks = "all", compression: str = "none"
    ) -> list[int]:
        lines = [
            [str(record.partition), str(record.timestamp), _text(record.key), _text(record.value)]
            + [_text(field) for name, value in record.headers for field in (name.encode(), value)]
            for record in records
        ]
        said = self._run("produce", topic, str(acks), compression, given=lines)
        return [int(line[0]) for line in said]

    def consume(self, topic: str, count: int, *, group: str | None = None) -> list[Record]:
        said = self._run("consume", topic, str(count), group or "-")
        return [
            Record(
                _bytes(key),
                _bytes(value),
                tuple(
                    ((_bytes(name) or b"").decode(), _bytes(held))
                    for name, held in zip(headers[::2], headers[1::2], strict=True)
                ),
                int(timestamp),
                int(partition),
                int(offset),
            )
            for partition, offset, timestamp, key, value, *headers in said
        ]

    def _run(self, action: str, *options: str, given: Sequence[list[str]] = ()) -> list[list[str]]:
        java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx1g"]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        classes = f"{_compiled()}:{EmbeddedKafka.classpath()}"
        done = subprocess.run(
            [*java, quiet, "-cp", classes, "JavaClient", action, self.bootstrap, *options],
            input="".join("\t".join(line) + "\n" for line in given),
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * LONG_S,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        return [line.split("\t") for line in done.stdout.splitlines()]


@cache
def _compiled() -> str:
    """The folder of the class; nobody needs it after the tests."""
    folder = tempfile.mkdtemp(prefix="tailrace-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = Path(__file__).with_name("JavaClient.java")
    command = ["javac", "-cp", EmbeddedKafka.classpath(), "-d", folder, str(source)]
    subprocess.run(command, check=True)
    return folder


def _text(value: bytes | None) -> str:
    return "-" if value is None else base64.b64encode(value).decode()


def _bytes(field: str) -> bytes | None:
    return None if field == "-" else base64.b64decode(field)


CLIENTS: dict[str, type[Client]] = {
    "librdkafka": Librdkafka,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
    "java": Java,
}
