"""Errors, as each client library reports them, and on the wire."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.fix_broker import KAFKA_MESSAGE_BYTES
from tests.integration.broker.asking import ask, batch, errors
from tests.integration.broker.clients import Record
from tests.integration.broker.refusals import refused
from tests.integration.broker.samples import create_topic, sample_records
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.integration.broker.clients import Client

PRODUCE, FETCH, LIST_OFFSETS, COMMIT, JOIN, HEARTBEAT = (
    (0, 9),
    (1, 12),
    (2, 7),
    (8, 8),
    (11, 9),
    (12, 4),
)
FIND_COORDINATOR, LEAVE, SYNC, DELETE_RECORDS = (10, 3), (13, 5), (14, 5), (21, 2)
NOT_READY = {"not_coordinator", "coordinator_not_available", "coordinator_load_in_progress"}
SOON, LONG = timedelta(seconds=1), timedelta(seconds=60)
UNKNOWN = {"unknown_topic_or_partition"}

# A client requests metadata repeatedly, and each reports its timeout differently.
NO_TOPIC = {
    "Librdkafka": "UNKNOWN_TOPIC_OR_PARTITION",
    "Aiokafka": "UNKNOWN_TOPIC_OR_PARTITION",
    "KafkaPython": "KafkaTimeoutError",
    "Java": "REQUEST_TIMED_OUT",
}
NO_PARTITION = {
    "Librdkafka": "_UNKNOWN_PARTITION",
    "Aiokafka": "AssertionError",
    "KafkaPython": "ValueError",
    "Java": "REQUEST_TIMED_OUT",
}


def listed(topic: str, partition: int = 0) -> dict[str, Any]:
    at = {"partition_index": partition, "timestamp": -1}
    asked = [{"name": topic, "partitions": [at]}]
    return {"replica_id": -1, "isolation_level": 0, "topics": asked}


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A topic that has a leader: Kafka lists a topic a moment before it serves it."""
    made = create_topic(bootstrap)
    wait_for(lambda: not errors(ask(bootstrap, *LIST_OFFSETS, listed(made))), "a leader")
    return made


def test_an_unknown_topic_is_an_error(client: Client, topic: str) -> None:
    with refused(client, NO_TOPIC):
        client.produce(f"no-{topic}", sample_records(1), acks=1, patience_s=3)
    with refused(client, "UNKNOWN_TOPIC_OR_PARTITION"):
        client.partitions(f"no-{topic}")


def test_an_unknown_partition_is_an_error(client: Client, topic: str) -> None:
    with refused(client, NO_PARTITION):
        client.produce(topic, [Record(value=b"v", partition=9)], acks=1, patience_s=3)
    assert client.bounds(topic) == (0, 0)


def produced(topic: str, partition: int = 0, *, acks: int = -1, size: int = 100) -> dict[str, Any]:
    data = {"name": topic, "partition_data": [{"index": partition, "records": batch(size)}]}
    return {"transactional_id": None, "acks": acks, "timeout": LONG, "topic_data": [data]}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, set()),
        ({"partition": 9}, UNKNOWN),
        ({"partition": -1}, UNKNOWN),
        ({"acks": 5}, {"invalid_required_acks"}),
        ({"size": KAFKA_MESSAGE_BYTES}, set()),
        ({"size": KAFKA_MESSAGE_BYTES + 1}, {"message_too_large"}),
    ],
)
def test_invalid_batches_are_refused(
    bootstrap: str, topic: str, given: dict[str, int], found: set[str]
) -> None:
    assert errors(ask(bootstrap, *PRODUCE, produced(topic, **given))) == found


def test_a_corrupt_batch_is_refused(bootstrap: str, topic: str) -> None:
    request = produced(topic)
    part = request["topic_data"][0]["partition_data"][0]
    part["records"] = part["records"][:-1] + b"\1"
    assert errors(ask(bootstrap, *PRODUCE, request)) == {"corrupt_message"}


@pytest.mark.parametrize(
    ("partition", "offset", "found"),
    [
        (0, 0, set()),
        (0, 1, set()),
        (0, 2, {"offset_out_of_range"}),
        (0, -1, {"offset_out_of_range"}),
        (9, 0, UNKNOWN),
    ],
)
def test_fetch_errors(
    bootstrap: str, topic: str, partition: int, offset: int, found: set[str]
) -> None:
    assert not errors(ask(bootstrap, *PRODUCE, produced(topic)))
    at = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1000}
    request = {
        "replica_id": -1, "max_wait": timedelta(0), "min_bytes": 1, "isolation_level": 0,
        "topics": [{"topic": topic, "partitions": [at]}], "forgotten_topics_data": [],
    }  # fmt: skip
    assert errors(ask(bootstrap, *FETCH, request)) == found


def test_offsets_of_unknown_partitions(bootstrap: str, topic: str) -> None:
    for name, partition in ((topic, 9), (f"no-{topic}", 0)):
        assert errors(ask(bootstrap, *LIST_OFFSETS, listed(name, partition))) == UNKNOWN
        cut = [{"name": name, "partitions": [{"partition_index": partition, "offset": 0}]}]
        request = {"topics": cut, "timeout": LONG}
        assert errors(ask(bootstrap, *DELETE_RECORDS, request)) == UNKNOWN


class Membership:
    """A group member that sends single requests."""

    def __init__(self, bootstrap: str, topic: str, instance: str | None = None) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.group, self.instance = f"g-{topic}", instance
        self.id, self.generation = "", -1
        # Kafka creates the topic of groups at the first question, and takes a moment to load it.
        asked = {"key": self.group, "key_type": 0}
        wait_for(lambda: not errors(ask(bootstrap, *FIND_COORDINATOR, asked)), "a coordinator")
        wait_for(lambda: not self.heartbeat() & NOT_READY, "the coordinator to be ready")

    def join(self, **given: Any) -> set[str]:
        request = {
            "group_id": self.group, "session_timeout": LONG, "rebalance_timeout": SOON,
            "member_id": self.id, "group_instance_id": self.instance, "reason": None,
            "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
        }  # fmt: skip
        answer = ask(self._bootstrap, *JOIN, request | given)
        if not given:
            self.id, self.generation = answer.member_id, answer.generation_id
        return errors(answer)

    def sync(self, **given: Any) -> set[str]:
        request = self._self() | {
            "protocol_type": "consumer", "protocol_name": "range",
            "assignments": [{"member_id": self.id, "assignment": b"all"}],
        }  # fmt: skip
        return errors(ask(self._bootstrap, *SYNC, request | given))

    def heartbeat(self, **given: Any) -> set[str]:
        return errors(ask(self._bootstrap, *HEARTBEAT, self._self() | given))

    def leave(self, member: str) -> set[str]:
        who = {"member_id": member, "group_instance_id": None, "reason": None}
        request = {"group_id": self.group, "members": [who]}
        return errors(ask(self._bootstrap, *LEAVE, request))

    def commit(self, name: str = "", partition: int = 0, **given: Any) -> set[str]:
        part = {"partition_index": partition, "committed_offset": 3, "committed_metadata": ""}
        known = self._self()
        known["generation_id_or_member_epoch"] = known.pop("generation_id")
        asked = {"topics": [{"name": name or self._topic, "partitions": [part]}]}
        return errors(ask(self._bootstrap, *COMMIT, known | asked | given))

    def _self(self) -> dict[str, Any]:
        return {
            "group_id": self.group, "generation_id": self.generation, "member_id": self.id,
            "group_instance_id": self.instance,
        }  # fmt: skip


def test_requests_of_another_generation_are_refused(bootstrap: str, topic: str) -> None:
    """A member of another generation cannot change anything."""
    member = Membership(bootstrap, topic)
    assert member.heartbeat() == {"unknown_member_id"}
    assert member.commit(generation_id_or_member_epoch=7) == {"illegal_generation"}
    assert member.join() == {"member_id_required"}
    assert member.join() == set()
    assert member.commit() == {"rebalance_in_progress"}
    assert member.sync() == set()
    assert member.heartbeat() == set()
    assert member.heartbeat(generation_id=99) == {"illegal_generation"}
    assert member.heartbeat(member_id="other") == {"unknown_member_id"}
    assert member.sync(generation_id=99) == {"illegal_generation"}
    assert member.sync(member_id="other") == {"unknown_member_id"}
    assert member.sync(protocol_name="other") == {"inconsistent_group_protocol"}
    assert member.commit() == set()
    assert member.commit(generation_id_or_member_epoch=99) == {"illegal_generation"}
    assert member.commit(member_id="other") == {"unknown_member_id"}
    outside: dict[str, Any] = {"member_id": "", "generation_id_or_member_epoch": -1}
    assert member.commit(**outside) == {"unknown_member_id"}
    assert member.commit(f"no-{topic}") == UNKNOWN
    assert member.commit(partition=9) == UNKNOWN
    assert member.leave("other") == {"unknown_member_id"}
    assert member.leave(member.id) == set()
    assert member.heartbeat() == {"unknown_member_id"}
    assert member.commit(**outside) == set()


def test_invalid_joins_are_refused(bootstrap: str, topic: str) -> None:
    member = Membership(bootstrap, topic)
    assert member.join(group_id="") == {"invalid_group_id"}
    assert member.join(session_timeout=timedelta(milliseconds=10)) == {"invalid_session_timeout"}
    assert member.join(member_id="other") == {"unknown_member_id"}
    assert member.join(protocols=[]) == {"inconsistent_group_protocol"}
    assert member.join() == {"member_id_required"}
    assert member.join() == set()
    assert member.join(member_id="", protocol_type="connect") == {"inconsistent_group_protocol"}
    other = [{"name": "other", "metadata": b""}]
    assert member.join(member_id="", protocols=other) == {"inconsistent_group_protocol"}


def test_a_static_member_is_fenced_by_its_successor(bootstrap: str, topic: str) -> None:
    first = Membership(bootstrap, topic, "one")
    assert first.join() == set()
    assert first.sync() == set()
    second = Membership(bootstrap, topic, "one")
    assert second.join() == set()
    assert second.generation == first.generation
    assert second.sync() == set()
    assert first.heartbeat() == {"fenced_instance_id"}
    assert first.commit() == {"fenced_instance_id"}
    assert first.join(member_id=first.id) == {"fenced_instance_id"}
    assert second.heartbeat() == set()
    assert second.commit() == set()
