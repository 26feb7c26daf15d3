"""Consumer groups: partitions are assigned, and reassigned when members join and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from tests.integration.broker.clients import MEMBERS, GroupDescription, supporting
from tests.integration.broker.refusals import refused
from tests.integration.broker.samples import create_topic, sample_records
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.integration.broker.clients import Client
    from tests.integration.broker.members import Members

LONG_SESSION = {"session.timeout.ms": 60_000}


def test_members_join_leave_and_expire(members: Members) -> None:
    """One is killed, one is suspended until it expires, one leaves: each record is read once."""
    first, second = members.add(), members.add()
    members.wait_for_shares(2, 2)
    members.write()
    members.wait_until_read()
    third = members.add()
    members.wait_for_shares(1, 1, 2)
    members.write()
    members.wait_until_read()
    members.wait_until_committed()
    members.running.remove(third)
    third.suspend()
    members.kill(second)
    members.wait_for_shares(4)
    members.write()
    members.wait_until_read()
    third.resume()
    members.running.append(third)
    members.wait_for_shares(2, 2)
    members.write()
    members.wait_until_read()
    members.leave(first)
    members.wait_for_shares(4)
    members.write()
    members.wait_until_read()


@pytest.mark.parametrize("members", supporting("cooperative", among=MEMBERS), indirect=True)
def test_cooperative_members_keep_their_partitions(members: Members) -> None:
    """When another member joins, a member revokes half of its partitions, never all."""
    first = members.add(LONG_SESSION, strategy="cooperative-sticky")
    members.wait_for_shares(4)
    second = members.add(LONG_SESSION, strategy="cooperative-sticky")
    members.wait_for_shares(2, 2)
    members.write()
    members.wait_until_read()
    had = first.shares()
    assert all(len(share) >= 2 for share in had[had.index({0, 1, 2, 3}) :])
    members.leave(second)
    members.wait_for_shares(4)
    members.write()
    members.wait_until_read()


def test_static_members_keep_their_assignment(members: Members) -> None:
    """A static member that restarts keeps its assignment; the other members see no rebalance."""
    first = members.add({"group.instance.id": "one", **LONG_SESSION})
    second = members.add({"group.instance.id": "two", **LONG_SESSION})
    members.wait_for_shares(2, 2)
    members.write()
    members.wait_until_read()
    members.wait_until_committed()
    for member, name, end in ((second, "two", members.kill), (first, "one", members.leave)):
        held = member.share()
        (other,) = (each for each in members.running if each is not member)
        before = other.shares()
        end(member)
        again = members.add({"group.instance.id": name, **LONG_SESSION})
        members.wait_for_shares(2, 2)
        members.write()
        members.wait_until_read()
        assert again.share() == held
        assert other.shares() == before


def test_a_waiting_fetch_is_woken(members: Members) -> None:
    """A fetch may wait longer than this test: a new record ends it."""
    members.write()
    reader = members.add(
        {
            "auto.offset.reset": "latest",
            "fetch.max.wait.ms": 170_000,
            "request.timeout.ms": 200_000,
            **LONG_SESSION,
        }
    )
    members.wait_for_shares(4)

    def begun() -> bool:
        members.write(1)
        return bool(reader.reads())

    wait_for(begun, "a record to be read")
    for _ in range(3):
        count = len(reader.reads())
        members.write(1)
        wait_for(lambda: len(reader.reads()) >= count + 4, "the next records")  # noqa: B023
    assert min(offset for _, offset in reader.reads()) >= 3


def test_a_member_that_does_not_poll_is_removed(bootstrap: str) -> None:
    """A member that heartbeats and does not poll."""
    topic, readers = create_topic(bootstrap, 4), []
    for _ in range(2):
        reader = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"g-{topic}",
                "session.timeout.ms": 2000,
                "max.poll.interval.ms": 2000,
                "heartbeat.interval.ms": 200,
            }
        )
        reader.subscribe([topic])
        readers.append(reader)
    polling, silent = readers

    def shares(*asked: Consumer) -> list[int]:
        for each in asked:
            each.poll(0.1)
        return [len(each.assignment()) for each in asked]

    wait_for(lambda: shares(polling, silent) == [2, 2], "two shares")
    wait_for(lambda: shares(polling) == [4], "one share")
    for each in readers:
        each.close()


def test_groups_are_listed_and_described(client: Client, bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    group = f"g-{topic}"
    assert group not in client.groups()
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": "reader"})
    reader.subscribe([topic])
    wait_for(lambda: (reader.poll(0.1), reader.assignment())[1], "a share")
    assert group in client.groups()
    assert client.group(group) == GroupDescription("Stable", ("reader",))
    reader.close()
    client.commit(group, topic, 1)
    assert client.group(group) == GroupDescription("Empty")


@pytest.mark.parametrize("kind", supporting("delete_group"), indirect=True)
def test_a_group_is_deleted(client: Client, bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    group = f"g-{topic}"
    client.produce(topic, sample_records(5))
    client.consume(topic, 3, group=group)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    reader.subscribe([topic])
    wait_for(lambda: (reader.poll(0.1), reader.assignment())[1], "a share")
    with refused(client, "NON_EMPTY_GROUP"):
        client.delete_group(group)
    reader.close()
    client.delete_group(group)
    with refused(client, "GROUP_ID_NOT_FOUND"):
        client.delete_group(group)
    assert client.consume(topic, 5, group=group) == sample_records(5)
