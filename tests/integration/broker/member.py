"""A group member as a process, so that a test can kill or suspend it.

    python member.py LIBRARY TOPIC SETTINGS

Settings are Kafka's, as JSON. It prints one line per event:

    share <tab> 0,1                   its partitions, after each assignment and revocation
    read <tab> 0 <tab> 17             partition and offset of a record, after its commit
    refused <tab> 0 <tab> 17 <tab> …  a record whose commit was refused, and the error
    error <tab> …                     an error after which the library continues by itself

A record that it cannot commit does not count as read: the present owner of the partition reads it.
It leaves the group when its standard input ends.
"""

# ruff: noqa: PLC0415 - a process needs one library, and starts faster without the others

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from typing import Any

LEAVING = threading.Event()


def watch() -> None:
    sys.stdin.read()
    LEAVING.set()
    # Interrupts a poll that waits for records.
    os.kill(os.getpid(), signal.SIGINT)


def report(*fields: object) -> None:
    print(*fields, sep="\t", flush=True)


class Share:
    """Reports rebalances."""

    def __init__(self) -> None:
        self._parts: set[int] = set()

    def on_partitions_revoked(self, parts: Any) -> None:
        self._parts -= {part.partition for part in parts}
        report("share", ",".join(map(str, self._parts)))

    def on_partitions_assigned(self, parts: Any) -> None:
        self._parts |= {part.partition for part in parts}
        report("share", ",".join(map(str, self._parts)))


def librdkafka(topic: str, settings: dict[str, Any]) -> None:
    from confluent_kafka import Consumer, KafkaError, KafkaException

    unknown = {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
    """After these a commit may have been stored: it is repeated."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    share = Share()
    consumer = Consumer(settings)
    consumer.subscribe(
        [topic],
        on_assign=lambda _, parts: share.on_partitions_assigned(parts),
        on_revoke=lambda _, parts: share.on_partitions_revoked(parts),
    )
    while not LEAVING.is_set():
        message = consumer.poll(0.1)
        if message is None:
            continue
        if (error := message.error()) is not None:
            if error.fatal():
                raise KafkaException(error)
            report("error", error)
            continue
        while True:
            try:
                consumer.commit(message=message, asynchronous=False)
            except KafkaException as refused:
                if refused.args[0].code() in unknown:
                    report("error", refused)
                    continue
                report("refused", message.partition(), message.offset(), refused)
            else:
                report("read", message.partition(), message.offset())
            break
    consumer.close()


def aiokafka(topic: str, settings: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.errors import KafkaError

    signal.signal(signal.SIGINT, signal.SIG_IGN)

    class Listener(Share, ConsumerRebalanceListener):  # type: ignore[misc]
        """The library requires its own base class."""

    async def run() -> None:
        consumer = AIOKafkaConsumer(**settings)
        consumer.subscribe([topic], listener=Listener())
        await consumer.start()
        while not LEAVING.is_set():
            found = await consumer.getmany(timeout_ms=100, max_records=1)
            for part, messages in found.items():
                for message in messages:
                    try:
                        await consumer.commit({part: message.offset + 1})
                    except KafkaError as refused:
                        report("refused", message.partition, message.offset, repr(refused))
                        continue
                    report("read", message.partition, message.offset)
        await consumer.stop()

    asyncio.run(run())


def kafka_python(topic: str, settings: dict[str, Any]) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    class Listener(Share, ConsumerRebalanceListener):  # type: ignore[misc]
        """The library requires its own base class."""

    # A shell that runs the tests in the background ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assignors = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
    chosen = assignors[settings.pop("partition_assignment_strategy")]
    consumer = KafkaConsumer(**settings, partition_assignment_strategy=[chosen])
    consumer.subscribe([topic], listener=Listener())
    try:
        while not LEAVING.is_set():
            # A poll that times out during a join may forget the join, so the timeout is long.
            for part, messages in consumer.poll(timeout_ms=600_000, max_records=1).items():
                for message in messages:
                    try:
                        consumer.commit({part: OffsetAndMetadata(message.offset + 1, "", -1)})
                    except KafkaError as refused:
                        report("refused", message.partition, message.offset, repr(refused))
                        continue
                    report("read", message.partition, message.offset)
    except KeyboardInterrupt:
        assert LEAVING.is_set()
    consumer.close()


if __name__ == "__main__":
    threading.Thread(target=watch, daemon=True).start()
    library, given_topic, given = sys.argv[1:]
    {"librdkafka": librdkafka, "aiokafka": aiokafka, "kafka-python": kafka_python}[library](
        given_topic, json.loads(given)
    )
