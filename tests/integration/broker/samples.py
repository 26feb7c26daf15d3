"""A new topic, and sample records, for scenarios to start with."""

from __future__ import annotations

import uuid

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.broker.clients import Record
from tests.waiting import LONG_S


def create_topic(bootstrap: str, partitions: int = 1, **config: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    # The timestamps of the records are old: the default retention would delete them.
    config = {"retention_ms": "-1"} | config
    settings = {key.replace("_", "."): value for key, value in config.items()}
    made = admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
    made[name].result(LONG_S)
    return name


def sample_records(count: int, *, first: int = 0, size: int = 50) -> list[Record]:
    return [
        Record(
            # Some clients require a key or a value.
            key=None if number % 10 == 3 else f"key {number}".encode(),
            value=None if number % 10 == 5 else (f"value {number} " * size)[:size].encode(),
            headers=(("a", b"1"), ("a", b""), ("b", b"\xff\0")) if number % 3 == 0 else (),
            timestamp=1_700_000_000_000 + number,
        )
        for number in range(first, first + count)
    ]
