"""Consumer groups: partitions are shared out, and shared out again when members come and go."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, TopicPartition

from tests.integration.broker.clients import Librdkafka
from tests.integration.broker.test_conformance import make_topic, some
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka.admin import AdminClient


class Members:
    """Consumers of one group that are polled together, as nobody else does it for them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        self._bootstrap, self._topic = bootstrap, topic
        self.all: list[Consumer] = []

    def add(self, **settings: Any) -> Consumer:
        member = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
                **settings,
            }
        )
        member.subscribe([self._topic])
        self.all.append(member)
        return member

    def remove(self, member: Consumer) -> None:
        self.all.remove(member)
        member.close()

    def shares(self) -> list[int]:
        """How many partitions each has; no partition has two readers."""
        for member in self.all:
            member.poll(0.1)
        shares = [{part.partition for part in member.assignment()} for member in self.all]
        found = [partition for share in shares for partition in share]
        assert len(found) == len(set(found)) or len(self.all) > 1
        return sorted(len(share) for share in shares)

    def settled(self, *counts: int) -> None:
        wait_for(lambda: self.shares() == list(counts), f"shares of {counts}", 60)
        found = [part.partition for member in self.all for part in member.assignment()]
        assert sorted(found) == list(range(sum(counts)))


@pytest.fixture
def members(bootstrap: str) -> Iterator[Members]:
    made = Members(bootstrap, make_topic(bootstrap, 4))
    yield made
    for member in made.all:
        member.close()


def test_partitions_are_shared_out_again(members: Members) -> None:
    first = members.add()
    members.settled(4)
    second = members.add()
    members.settled(2, 2)
    third = members.add()
    members.settled(1, 1, 2)
    members.remove(second)
    members.settled(2, 2)
    members.remove(third)
    members.settled(4)
    assert members.all == [first]


def test_cooperative_members(members: Members) -> None:
    sticky = {"partition.assignment.strategy": "cooperative-sticky"}
    members.add(**sticky)
    members.settled(4)
    members.add(**sticky)
    members.settled(2, 2)


def test_members_with_names_of_their_own(members: Members) -> None:
    """A static member that comes again has its share without a rebalance."""
    members.add(**{"group.instance.id": "one"})
    members.settled(4)
    left = members.add(**{"group.instance.id": "two"})
    members.settled(2, 2)
    held = {part.partition for part in left.assignment()}
    members.remove(left)
    back = members.add(**{"group.instance.id": "two"})
    members.settled(2, 2)
    assert {part.partition for part in back.assignment()} == held


def test_a_silent_member_is_taken_out(members: Members) -> None:
    members.add()
    silent = members.add(**{"max.poll.interval.ms": 6000})
    members.settled(2, 2)
    members.all.remove(silent)
    members.settled(4)
    silent.close()


def test_groups_are_shown(members: Members, admin: AdminClient) -> None:
    members.add(**{"client.id": "somebody"})
    members.settled(4)
    listed = admin.list_consumer_groups().result(30).valid
    assert members.group in {group.group_id for group in listed}
    shown = admin.describe_consumer_groups([members.group])[members.group].result(30)
    assert shown.state is ConsumerGroupState.STABLE
    (member,) = shown.members
    assert member.client_id == "somebody"
    assert len(member.assignment.topic_partitions) == 4
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([members.group])[members.group].result(30)


def test_offsets_of_a_group(bootstrap: str, admin: AdminClient) -> None:
    topic = make_topic(bootstrap)
    client = Librdkafka(bootstrap)
    client.produce(topic, some(5))
    group = f"g-{topic}"
    client.consume(topic, 3, group=group)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (held,) = consumer.committed([TopicPartition(topic, 0)], 30)
    assert held.offset == 3
    (none,) = consumer.committed([TopicPartition(topic, 0, 0)][:1], 30)
    assert none.offset == 3
    consumer.close()
    admin.delete_consumer_groups([group])[group].result(30)
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group])[group].result(30)
    assert client.consume(topic, 5, group=group) == some(5)
