"""Topics: each looked at once, made when it is missing, never altered.

A destination may come from a user's expression: one that is no topic's name is refused by us,
with the message's id, before anything of it is sent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tailrace.errors import PoisonedError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.kafka.client import base, made
from tailrace.sinks.kafka.failures import Events, cause
from tailrace.sinks.kafka.names import place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future
    from typing import Any

    from tailrace.config import Kafka, KafkaSink
    from tailrace.errors import TailraceError

_UNKNOWN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
_LOOK_S = 0.05
_REMEMBERED = 100_000


class Cluster:
    """Looking at topics and making them."""

    def __init__(self, settings: Kafka, *, name: str) -> None:
        self._settings = settings
        self._events = Events()
        self._admin = made(AdminClient, base(settings, self._events, name=name))

    def partitions(self, topics: Sequence[str]) -> dict[str, int | None]:
        """How many partitions each topic has, 0 while some have no leader; None if it is not."""
        asked = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=self._settings.timeout_s
        )
        found: dict[str, int | None] = {}
        for topic, future in asked.items():
            try:
                described = self._result(future, f"topic {topic}")
            except KafkaException:
                found[topic] = None
                continue
            led = all(partition.leader is not None for partition in described.partitions)
            found[topic] = len(described.partitions) if led else 0
        return found

    def make(
        self, topics: Sequence[str], partitions: int, config: Mapping[str, str] | None = None
    ) -> None:
        """Create topics and wait until every partition has a leader."""
        replicas = self._settings.replicas
        wanted = [
            NewTopic(topic, partitions, replicas, config=dict(config or {})) for topic in topics
        ]
        asked = self._admin.create_topics(wanted, request_timeout=self._settings.timeout_s)
        for topic, future in asked.items():
            if self._result(future, f"topic {topic} cannot be made") is None:
                structlog.get_logger().info(
                    "kafka.topic-created", topic=topic, partitions=partitions
                )
        self._wait(topics, partitions)

    def _wait(self, topics: Sequence[str], partitions: int) -> None:
        deadline = time.monotonic() + self._settings.timeout_s
        while any((count or 0) < partitions for count in self.partitions(topics).values()):
            if time.monotonic() > deadline:
                raise SinkUnreachableError(f"no leader for the new topics {', '.join(topics)} yet")
            time.sleep(_LOOK_S)

    def widen(self, topic: str, partitions: int) -> None:
        """Give a topic of our own more partitions."""
        asked = self._admin.create_partitions(
            [NewPartitions(topic, partitions)], request_timeout=self._settings.timeout_s
        )
        self._result(asked[topic], f"topic {topic} cannot be given {partitions} partitions")
        self._wait([topic], partitions)

    def config(self, topic: str) -> dict[str, str]:
        """A topic's configuration; empty when we may not see it."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        asked = self._admin.describe_configs([resource], request_timeout=self._settings.timeout_s)
        try:
            entries = asked[resource].result(self._settings.timeout_s)
        except KafkaException:
            return {}
        return {name: entry.value for name, entry in entries.items()}

    def _result(self, future: Future[Any], what: str) -> Any:
        """An answer; KafkaException if there is no such topic, and ours for all else."""
        try:
            return future.result(self._settings.timeout_s * 2)
        except KafkaException as error:
            said = cause(error)
            if said is not None and said.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return said
            if said is not None and said.code() in _UNKNOWN:
                raise
            self._admin.poll(0)
            raise self._events.translate_error(said, what) from error


class Topics:
    """What messages may go to."""

    def __init__(self, settings: KafkaSink, *, name: str) -> None:
        self._settings = settings
        self._name = name
        self._known: set[bytes] = set()

    def unfit(self, destinations: pa.Array) -> tuple[int, TailraceError] | None:
        """The first row whose destination cannot be used, and why; None when all can."""
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        new = [one for one in pc.unique(destinations).to_pylist() if one not in self._known]
        reasons: dict[bytes, TailraceError] = {}
        named: dict[bytes, str] = {}
        for one in new:
            if found := place(one):
                named[one] = found.topic
            else:
                reasons[one] = _illegal(one)
        if named:
            missing = self._missing(sorted(set(named.values())))
            reasons |= {one: _absent(topic) for one, topic in named.items() if topic in missing}
            self._known.update(named.keys() - reasons.keys())
        if not reasons:
            return None
        bad = pc.is_in(destinations, pa.array(list(reasons), destinations.type))
        row = pc.index(bad, True).as_py()
        return row, reasons[destinations[row].as_py()]

    def _missing(self, topics: list[str]) -> list[str]:
        """Those that are not there, after making them if that is wanted."""
        cluster = Cluster(self._settings, name=self._name)
        found = cluster.partitions(topics)
        missing = [topic for topic, count in found.items() if count is None]
        if missing and self._settings.create:
            cluster.make(missing, self._settings.partitions)
            return []
        return missing


def _illegal(destination: bytes) -> TailraceError:
    shown = repr(destination[:300].decode("utf-8", "replace"))
    return PoisonedError(
        f"its destination {shown} is not the name of a topic",
        hint="Topics are 1 to 249 letters, digits, dots, `_` and `-`, with `/` and a partition's "
        "number if you like. Change `route`.",
    )


def _absent(topic: str) -> TailraceError:
    return SinkRefusedError(
        f"there is no topic {topic}",
        hint="Create the topic, or let Tailrace do it with `create: true`.",
    )
