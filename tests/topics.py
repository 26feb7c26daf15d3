"""Topics of a real Kafka, read to their end with a client that is not ours."""

from __future__ import annotations

import itertools
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.admin._listoffsets import OffsetSpec

from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Message

_OPEN_S = 2.0
_later = itertools.count(1_000_000)


def messages(
    bootstrap: str,
    topic: str,
    *,
    partition: int | None = None,
    committed: bool = True,
    is_open: bool = False,
) -> list[Message]:
    """Everything in a topic, or in one of its partitions, in the order of partitions and offsets.

    Committed is what consumers see who read committed records only. `is_open` says that a
    transaction stays open meanwhile.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reading-{uuid.uuid4()}",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        numbers = consumer.list_topics(topic, LONG_S).topics[topic].partitions
        places = [TopicPartition(topic, one, 0) for one in numbers if partition in {None, one}]
        if committed:
            settle(bootstrap, places, _OPEN_S if is_open else LONG_S)
        return _to_the_end(consumer, places)
    finally:
        consumer.close()


def end(bootstrap: str, place: TopicPartition, *, committed: bool = True) -> int:
    """The offset behind the last record, or behind the last before an open transaction."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    deadline = time.monotonic() + LONG_S
    while True:
        asked = admin.list_offsets({place: latest}, isolation_level=level)
        try:
            return int(asked[place].result(LONG_S).offset)
        except KafkaException as error:
            # A broker that has just come back has no leaders yet.
            if error.args[0].code() != KafkaError._NOENT or time.monotonic() > deadline:
                raise


def settle(bootstrap: str, places: Sequence[TopicPartition], timeout_s: float = LONG_S) -> None:
    """Kafka answers a commit before partitions have its marker: wait, unless one stays open."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if all(end(bootstrap, one) == end(bootstrap, one, committed=False) for one in places):
            return
        time.sleep(0.01)


def alter(bootstrap: str, topic: str, config: Mapping[str, str]) -> None:
    """Change settings of a topic, and return when the broker has applied them.

    A broker answers before that, shows changes before it applies them, and does both in the order
    of the changes: when it shows a later change, it has applied the earlier one.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for settings in (config, {"delete.retention.ms": str(next(_later))}):
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(LONG_S)
        wait_for(partial(_shows, admin, topic, settings), f"settings of {topic}")


def _shows(admin: AdminClient, topic: str, settings: Mapping[str, str]) -> bool:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(LONG_S)
    return all(found[name].value == value for name, value in settings.items())


def _to_the_end(consumer: Consumer, places: Sequence[TopicPartition]) -> list[Message]:
    consumer.assign(list(places))
    found, open_ends = [], {one.partition for one in places}
    heard = time.monotonic()
    while open_ends:
        got = consumer.consume(1000, 0.1)
        for message in got:
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_ends.discard(message.partition() or 0)
        heard = time.monotonic() if got else heard
        assert time.monotonic() < heard + LONG_S, f"no answer from partitions {open_ends}"
    return sorted(found, key=lambda one: (one.partition() or 0, one.offset() or 0))
