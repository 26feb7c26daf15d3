"""Topics of the sink: looked up once, created when missing, never altered.

Their limit for the size of a message is looked up again where it decides.

A destination may come from a user's `route`. The sink rejects an invalid topic name itself, with
the id of the message, before it sends anything: librdkafka would report it without the id.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tailrace.errors import PoisonedError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.kafka.client import client_config, create_client
from tailrace.sinks.kafka.failures import Events, cause
from tailrace.sinks.kafka.names import parse_destination

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from concurrent.futures import Future
    from typing import Any

    from numpy.typing import NDArray

    from tailrace.errors import TailraceError
    from tailrace.sinks.kafka.settings import Kafka, KafkaSink

_UNKNOWN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
_POLL_S = 0.05
NO_LIMIT = 2**31
_MAX_KNOWN = 100_000
"""A `route` may compute a topic per row: the set of known destinations must not grow for ever."""


class Cluster:
    """Looks up topics and creates them."""

    def __init__(
        self, settings: Kafka, *, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._events = Events()
        self._clock = clock
        self._admin = create_client(AdminClient, client_config(settings, self._events, name=name))

    def partitions(self, topics: Sequence[str]) -> dict[str, int | None]:
        """The number of partitions of each topic.

        0 while a partition has no leader, None if the topic does not exist.
        """
        futures = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=self._settings.timeout_s
        )
        counts: dict[str, int | None] = {}
        for topic, future in futures.items():
            try:
                described = self._result(future, f"topic {topic}")
            except KafkaException:
                counts[topic] = None
                continue
            led = all(partition.leader is not None for partition in described.partitions)
            counts[topic] = len(described.partitions) if led else 0
        return counts

    def create(
        self, topics: Sequence[str], partitions: int, config: Mapping[str, str] | None = None
    ) -> None:
        """Create topics and wait until every partition has a leader.

        Another client may have created one meanwhile, with other partitions: it stays as it is.
        """
        replicas = self._settings.replicas
        new = [NewTopic(topic, partitions, replicas, config=dict(config or {})) for topic in topics]
        futures = self._admin.create_topics(new, request_timeout=self._settings.timeout_s)
        created, existing = [], []
        for topic, future in futures.items():
            if self._result(future, f"topic {topic} cannot be created") is None:
                created.append(topic)
                structlog.get_logger().info(
                    "kafka.topic_created", topic=topic, partitions=partitions
                )
            else:
                existing.append(topic)
        self._wait_for_leaders(created, partitions)
        self._wait_for_leaders(existing, 1)

    def _wait_for_leaders(self, topics: Sequence[str], partitions: int) -> None:
        deadline = self._clock() + self._settings.timeout_s
        while topics and min(count or 0 for count in self.partitions(topics).values()) < partitions:
            if self._clock() > deadline:
                raise SinkUnreachableError(
                    f"the new topics {', '.join(topics)} have no leader after "
                    f"{self._settings.timeout_s:g} s"
                )
            time.sleep(_POLL_S)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions of a topic that Tailrace owns."""
        futures = self._admin.create_partitions(
            [NewPartitions(topic, partitions)], request_timeout=self._settings.timeout_s
        )
        self._result(futures[topic], f"topic {topic} cannot be raised to {partitions} partitions")
        self._wait_for_leaders([topic], partitions)

    def ends(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], int | None]:
        """The next offset of each partition, None if it does not exist.

        Without those that have no leader, and those that the user may not describe.
        """
        counts = self._described(sorted({topic for topic, _ in places}))
        ends: dict[tuple[str, int], int | None] = dict.fromkeys(
            place for place in places if counts.get(place[0], 0) != 0
        )
        known = [place for place in ends if place[1] < (counts[place[0]] or 0)]
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        offsets = {TopicPartition(*place): latest for place in known}
        timeout_s = self._settings.timeout_s
        futures = self._admin.list_offsets(offsets, request_timeout=timeout_s) if offsets else {}
        for place, future in futures.items():
            try:
                ends[place.topic, place.partition] = self._result(future, str(place)).offset
            except SinkRefusedError:
                del ends[place.topic, place.partition]
        return ends

    def _described(self, topics: Sequence[str]) -> dict[str, int | None]:
        """The number of partitions of each topic that the user may describe."""
        counts: dict[str, int | None] = {}
        for topic in topics:
            with contextlib.suppress(SinkRefusedError):
                counts |= self.partitions([topic])
        return counts

    def config(self, topic: str) -> dict[str, str]:
        """The configuration of a topic; empty without the right to describe it."""
        return self._configs([topic])[topic]

    def limits(self, topics: Sequence[str]) -> dict[str, int]:
        """`max.message.bytes` of each topic; NO_LIMIT without the right to describe it."""
        configs = self._configs(topics)
        return {topic: int(configs[topic].get("max.message.bytes", NO_LIMIT)) for topic in configs}

    def _configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        timeout_s = self._settings.timeout_s
        futures = self._admin.describe_configs(resources, request_timeout=timeout_s)
        configs: dict[str, dict[str, str]] = {topic: {} for topic in topics}
        for resource, future in futures.items():
            with contextlib.suppress(KafkaException):
                entries = future.result(timeout_s)
                configs[resource.name] = {name: each.value for name, each in entries.items()}
        return configs

    def _result(self, future: Future[Any], what: str) -> Any:
        """The result of a request.

        None on success. An existing topic, which another process has created, is not a failure:
        its error is returned. A missing topic raises `KafkaException`, other failures raise
        Tailrace errors.
        """
        try:
            return future.result(self._settings.timeout_s * 2)
        except KafkaException as error:
            reason = cause(error)
            if reason is not None and reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return reason
            if reason is not None and reason.code() in _UNKNOWN:
                raise
            self._admin.poll(0)
            raise self._events.translate_error(reason, what) from error


class Topics:
    """The destinations that a sink may publish to."""

    def __init__(self, settings: KafkaSink, *, name: str) -> None:
        self._settings = settings
        self._name = name
        self._known: dict[bytes, str] = {}
        """The topics of destinations."""
        self._limits: dict[str, int] = {}
        """`max.message.bytes` of the known topics."""

    def invalid(self, destinations: pa.Array) -> dict[int, TailraceError]:
        """The rows whose destinations cannot be used, and why.

        Only destinations that were not seen before are looked up, once per distinct value.
        """
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
            self._limits.clear()
        new = [value for value in pc.unique(destinations).to_pylist() if value not in self._known]
        errors: dict[bytes, TailraceError] = {}
        topics: dict[bytes, str] = {}
        for value in new:
            if destination := parse_destination(value):
                topics[value] = destination.topic
            else:
                errors[value] = _invalid_name(value)
        if topics:
            missing = self._create_missing(sorted(set(topics.values())))
            errors |= {
                value: missing_topic(topic) for value, topic in topics.items() if topic in missing
            }
            found = {value: topic for value, topic in topics.items() if value not in errors}
            self._look_up_limits(sorted(set(found.values()) - self._limits.keys()))
            self._known |= found
        if not errors:
            return {}
        invalid = pc.is_in(destinations, pa.array(list(errors), destinations.type))
        rows = pc.indices_nonzero(invalid).to_pylist()
        return {row: errors[destinations[row].as_py()] for row in rows}

    def limits(self, destinations: pa.Array) -> NDArray[np.int64]:
        """How large a batch each row's topic takes, as it was when it was last looked up."""
        coded = destinations.dictionary_encode()
        topics = [self._known.get(value, "") for value in coded.dictionary.to_pylist()]
        limits = np.array([self._limits.get(topic, NO_LIMIT) for topic in topics], np.int64)
        found: NDArray[np.int64] = limits[coded.indices.to_numpy()]
        return found

    def present_limit(self, destination: bytes) -> int:
        """How large a batch the topic of a known destination takes now."""
        topic = self._known[destination]
        self._look_up_limits([topic])
        return self._limits[topic]

    def take_less(self) -> bool:
        """Whether a topic takes less than when it was last looked up. Looks all of them up."""
        before = dict(self._limits)
        self._look_up_limits(list(before))
        return any(self._limits[topic] < limit for topic, limit in before.items())

    def _look_up_limits(self, topics: list[str]) -> None:
        if topics:
            self._limits |= Cluster(self._settings, name=self._name).limits(topics)

    def _create_missing(self, topics: list[str]) -> list[str]:
        """Create the topics that do not exist, if `create` allows it; those still missing."""
        cluster = Cluster(self._settings, name=self._name)
        counts = cluster.partitions(topics)
        missing = [topic for topic, count in counts.items() if count is None]
        if missing and self._settings.create:
            cluster.create(missing, self._settings.partitions)
            return []
        return missing


def _invalid_name(destination: bytes) -> TailraceError:
    shown = repr(destination[:300].decode("utf-8", "replace"))
    return PoisonedError(
        f"destination {shown} is not a valid topic name",
        hint="Change `route`: a topic name has 1 to 249 letters, digits, dots, `_` and `-`; `/` "
        "and a partition number may follow.",
    )


def missing_topic(topic: str) -> TailraceError:
    """The error for a topic that the sink may not create."""
    return SinkRefusedError(
        f"there is no topic {topic}",
        hint="Create the topic, or set `create: true` for the sink.",
    )
