"""Consumer groups: partitions are shared out, and shared out again when members come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from tests.integration.broker.clients import MEMBERS, Shown, able
from tests.integration.broker.given import make_topic, some
from tests.integration.broker.refusals import refused
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.integration.broker.clients import Client
    from tests.integration.broker.members import Members

LONG_SESSION = {"session.timeout.ms": 60_000}


def test_members_join_leave_and_expire(members: Members) -> None:
    """One is killed, one is held still until it is no member any more, one leaves: each record is
    read once.
    """
    first, second = members.add(), members.add()
    members.settled(2, 2)
    members.write()
    members.done()
    third = members.add()
    members.settled(1, 1, 2)
    members.write()
    members.done()
    members.committed()
    members.living.remove(third)
    third.hold()
    members.kill(second)
    members.settled(4)
    members.write()
    members.done()
    third.go_on()
    members.living.append(third)
    members.settled(2, 2)
    members.write()
    members.done()
    members.leave(first)
    members.settled(4)
    members.write()
    members.done()


@pytest.mark.parametrize("members", able("cooperative", among=MEMBERS), indirect=True)
def test_cooperative_members_keep_their_partitions(members: Members) -> None:
    """Who is joined by another gives up half, and never all."""
    first = members.add(LONG_SESSION, strategy="cooperative-sticky")
    members.settled(4)
    second = members.add(LONG_SESSION, strategy="cooperative-sticky")
    members.settled(2, 2)
    members.write()
    members.done()
    had = first.shares()
    assert all(len(share) >= 2 for share in had[had.index({0, 1, 2, 3}) :])
    members.leave(second)
    members.settled(4)
    members.write()
    members.done()


def test_static_members_keep_their_assignment(members: Members) -> None:
    """A static member that ends or dies, and comes again, has its share; nobody else notices."""
    first = members.add({"group.instance.id": "one", **LONG_SESSION})
    second = members.add({"group.instance.id": "two", **LONG_SESSION})
    members.settled(2, 2)
    members.write()
    members.done()
    members.committed()
    for member, name, end in ((second, "two", members.kill), (first, "one", members.leave)):
        held = member.share()
        (other,) = (each for each in members.living if each is not member)
        before = other.shares()
        end(member)
        again = members.add({"group.instance.id": name, **LONG_SESSION})
        members.settled(2, 2)
        members.write()
        members.done()
        assert again.share() == held
        assert other.shares() == before


def test_a_waiting_fetch_is_woken(members: Members) -> None:
    """A fetch may wait for longer than this test: a record that comes ends it."""
    members.write()
    reader = members.add(
        {
            "auto.offset.reset": "latest",
            "fetch.max.wait.ms": 170_000,
            "request.timeout.ms": 200_000,
            **LONG_SESSION,
        }
    )
    members.settled(4)

    def begun() -> bool:
        members.write(1)
        return bool(reader.reads())

    wait_for(begun, "a record to be read", 60)
    for _ in range(3):
        count = len(reader.reads())
        members.write(1)
        wait_for(lambda: len(reader.reads()) >= count + 4, "the next records", 60)  # noqa: B023
    assert min(offset for _, offset in reader.reads()) >= 3


def test_a_member_that_does_not_poll_is_removed(bootstrap: str) -> None:
    """One that lives and does not ask for records."""
    topic, readers = make_topic(bootstrap, 4), []
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
    speaking, silent = readers

    def shares(*asked: Consumer) -> list[int]:
        for each in asked:
            each.poll(0.1)
        return [len(each.assignment()) for each in asked]

    wait_for(lambda: shares(speaking, silent) == [2, 2], "two shares", 60)
    wait_for(lambda: shares(speaking) == [4], "one share", 60)
    for each in readers:
        each.close()


def test_groups_are_listed_and_described(client: Client, bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    group = f"g-{topic}"
    assert group not in client.groups()
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": "somebody"})
    reader.subscribe([topic])
    wait_for(lambda: (reader.poll(0.1), reader.assignment())[1], "a share", 60)
    assert group in client.groups()
    assert client.group(group) == Shown("Stable", ("somebody",))
    reader.close()
    client.commit(group, topic, 1)
    assert client.group(group) == Shown("Empty")


@pytest.mark.parametrize("kind", able("delete_group"), indirect=True)
def test_a_group_is_deleted(client: Client, bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    group = f"g-{topic}"
    client.produce(topic, some(5))
    client.consume(topic, 3, group=group)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    reader.subscribe([topic])
    wait_for(lambda: (reader.poll(0.1), reader.assignment())[1], "a share", 60)
    with refused(client, "NON_EMPTY_GROUP"):
        client.delete_group(group)
    reader.close()
    client.delete_group(group)
    with refused(client, "GROUP_ID_NOT_FOUND"):
        client.delete_group(group)
    assert client.consume(topic, 5, group=group) == some(5)
