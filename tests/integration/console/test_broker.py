"""The page of the broker: a real broker, PostgreSQL, Kafka's client, and the console over HTTP."""

from __future__ import annotations

import json
import uuid
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from tailrace.broker import resets
from tailrace.broker.tables.inspection import serving as serving_broker
from tailrace.broker.tables.presence import GROUP_LOCK
from tests.command import call
from tests.fix_broker import BrokerProcess
from tests.integration.broker.samples import create_topic
from tests.integration.console.serving import serving
from tests.unit.console.house import TOKEN, House, Html
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.fix_postgres import Database

    Join = Callable[[], AbstractContextManager[Consumer]]

PARTITIONS, RECORDS = 2, 5
"""Each partition of the topic has that many records."""
BEARER = {"authorization": f"Bearer {TOKEN}"}


class Console:
    """The console and its API, over HTTP."""

    def __init__(self, house: House, url: str) -> None:
        self.house = house
        self._client = httpx.Client(base_url=url, timeout=LONG_S)
        self._url = url

    def document(self, **query: str) -> dict[str, Any]:
        answer = self._client.get("/api/v1/broker", params=query, headers=BEARER)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def group(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(iter(self.document(group=name)["groups"]), {})
        return found

    def page(self, path: str = "/console/broker", **query: str) -> Html:
        answer = self._client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return Html(answer.text)

    def log_in(self) -> None:
        self.submit("/login", {"secret": TOKEN, "next": "/"})

    def reset(self, *, dry_run: bool = False, **body: str) -> httpx.Response:
        return self._client.post(
            "/api/v1/broker/reset",
            params={"dry_run": "true"} if dry_run else {},
            json=body,
            headers=BEARER,
        )

    def press(self, path: str, **fields: str) -> httpx.Response:
        """Submit the form of a confirmation page."""
        inputs = self.page(path, **fields).all("input")
        form = {each["name"]: each.get("value", "") for each in inputs if "name" in each}
        return self.submit(path, form)

    def submit(self, path: str, form: dict[str, str]) -> httpx.Response:
        answer = self._client.post(path, data=form, headers={"origin": self._url})
        assert answer.status_code == 303, answer.text
        return answer

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.house.audit().splitlines()]

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def house(broker: BrokerProcess, tmp_path: Path) -> House:
    return House(tmp_path / "data", source={"dsn": broker.database.dsn})


@pytest.fixture
def console(house: House) -> Iterator[Console]:
    with serving(house) as url:
        made = Console(house, url)
        made.log_in()
        yield made
        made.close()


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    return filled_topic(broker.bootstrap)


def filled_topic(bootstrap: str) -> str:
    """A topic with records in each partition."""
    name = create_topic(bootstrap, PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(PARTITIONS):
        for number in range(RECORDS):
            producer.produce(name, f"{partition}-{number}".encode(), partition=partition)
    assert producer.flush(LONG_S) == 0
    return name


@pytest.fixture
def group() -> str:
    """A name with what a path could not hold."""
    return f"team/a b {uuid.uuid4().hex[:8]}"


@pytest.fixture
def member(broker: BrokerProcess, group: str, topic: str) -> Join:
    return partial(joined, broker.bootstrap, group, topic)


@contextmanager
def joined(bootstrap: str, group: str, topic: str) -> Iterator[Consumer]:
    """Joins the group; leaves it at the end of the block."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "client.id": "reader",
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def read(consumer: Consumer, count: int) -> list[tuple[int | None, int | None]]:
    """Partition and offset of the next records."""
    found: list[tuple[int | None, int | None]] = []

    def poll() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            found.append((message.partition(), message.offset()))
        return len(found) >= count

    wait_for(poll, lambda: f"{count} records, got {found}")
    return sorted(found, key=str)


def partitions_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def lag_of_client(consumer: Consumer, topic: str) -> list[tuple[int, int, int]]:
    """Committed offset, end and lag of each partition, as Kafka's client says."""
    found = []
    for part in consumer.committed(partitions_of(topic), LONG_S):
        _, end = consumer.get_watermark_offsets(part, LONG_S)
        found.append((part.offset, end, end - part.offset))
    return found


def consume_some(member: Join, topic: str) -> list[tuple[int, int, int]]:
    """A member reads everything, commits 3 and 1, and leaves; the lag that its client shows."""
    with member() as consumer:
        assert len(read(consumer, PARTITIONS * RECORDS)) == PARTITIONS * RECORDS
        offsets = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 1)]
        consumer.commit(offsets=offsets, asynchronous=False)
        return lag_of_client(consumer, topic)


def shown(group: dict[str, Any]) -> list[tuple[int, int, int]]:
    return [
        (each["committed_offset"], each["end_offset"], each["lag"]) for each in group["offsets"]
    ]


def wait_until_empty(console: Console, group: str) -> None:
    wait_for(lambda: console.group(group)["state"] == "Empty", "the group to be empty")


def test_lag_is_what_the_client_says_and_a_reset_moves_it(
    console: Console, topic: str, group: str, member: Join
) -> None:
    """GIVEN a group that has read, committed and left WHEN the page and the API are read THEN both
    show the client's own lag; and WHEN its offsets are reset with the button THEN a confirmation
    counts the records, the audit file has it, and the consumer reads from there."""
    said = consume_some(member, topic)
    assert said == [(3, 5, 2), (1, 5, 4)]
    wait_until_empty(console, group)
    found = console.group(group)
    assert (shown(found), found["lag"], found["members"]) == (said, 6, [])
    (listed,) = console.document(topic=topic)["topics"]
    assert listed["table"] == "kafka.messages"
    assert [each["end_offset"] for each in listed["partitions"]] == [RECORDS] * PARTITIONS
    page = console.page(group=group)
    assert [
        each["value"] for each in page.all("data") if each["data-metric"] == "/api/v1/broker: lag"
    ][:3] == ["6", "2", "4"]

    confirm = console.page("/console/broker/reset", group=group, to="2", topic=topic)
    assert f"Group {group}: 1 record is read again, 1 record is skipped." in confirm.text
    assert f"{topic}:0: 3 becomes 2, 1 record is read again." in confirm.text
    assert f"{topic}:1: 1 becomes 2, 1 record is skipped." in confirm.text
    assert shown(console.group(group)) == said
    console.press("/console/broker/reset", group=group, to="2", topic=topic)
    assert shown(console.group(group)) == [(2, 5, 3), (2, 5, 3)]
    (entry,) = console.audit()
    assert entry | {"action": "broker.reset_offsets", "group": group, "to": "2"} == entry
    assert (entry["repeated"], entry["skipped"], entry["topic"]) == (1, 1, topic)
    with member() as consumer:
        assert read(consumer, 6) == [(part, offset) for part in (0, 1) for offset in (2, 3, 4)]
        assert [each[0] for each in lag_of_client(consumer, topic)] == [2, 2]


def test_a_group_with_members_is_not_reset(
    console: Console, topic: str, group: str, member: Join
) -> None:
    """GIVEN a member WHEN a reset is asked for THEN page and API refuse it and name the member;
    and WHEN the member has left THEN it is possible."""
    with member() as consumer:
        read(consumer, PARTITIONS * RECORDS)
        consumer.commit(asynchronous=False)
        for dry_run in (True, False):
            answer = console.reset(group=group, to="earliest", dry_run=dry_run)
            assert answer.status_code == 409
            assert "has 1 member (reader at 127.0.0.1)" in answer.json()["error"]
        page = console.page("/console/broker/reset", group=group, to="earliest")
        assert "This is not possible" in page.text
        assert "Stop the consumers of the group" in page.text
        wait_for(lambda: console.group(group)["state"] == "Stable", "the state of the group")
        (shown_member,) = console.group(group)["members"]
        assert (shown_member["client"], shown_member["host"]) == ("reader", "127.0.0.1")
        assert {each[0] for each in lag_of_client(consumer, topic)} == {RECORDS}
    assert not console.audit()
    wait_until_empty(console, group)
    answer = console.reset(group=group, to="earliest")
    assert answer.status_code == 202
    assert answer.json()["repeated"] == PARTITIONS * RECORDS


def test_every_target(console: Console, topic: str, group: str, member: Join) -> None:
    """GIVEN committed offsets WHEN they are reset to either end, to an offset outside, and in one
    partition THEN the answer and the table have the new ones."""
    consume_some(member, topic)
    wait_until_empty(console, group)
    for to, of, expected, skipped in (
        ("latest", "", [5, 5], 6),
        ("earliest", f"{topic}:1", [5, 0], 0),
        ("999", topic, [5, 5], 5),
        ("earliest", "", [0, 0], 0),
    ):
        answer = console.reset(group=group, to=to, topic=of)
        assert answer.status_code == 202, answer.text
        assert answer.json()["skipped"] == skipped
        assert [each[0] for each in shown(console.group(group))] == expected
    other = console.reset(group=group, to="earliest", topic="none")
    assert (other.status_code, "there is no topic" in other.text) == (404, True)
    assert console.reset(group=f"{group}x", to="earliest").status_code == 404


def test_the_command_does_the_same(
    console: Console, house: House, topic: str, group: str, member: Join
) -> None:
    """GIVEN a group WHEN it is listed and reset by the command THEN it has the figures of the API,
    shows before what it changes, and writes to the same audit file; a member makes it refuse."""
    consume_some(member, topic)
    wait_until_empty(console, group)
    file = house.data.parent / "tailrace.yml"
    source = {"dsn": house.config.source.dsn.get_secret_value()}
    file.write_text(yaml.safe_dump({"source": source, "data": str(house.data)}))

    def run(*arguments: str, code: int = 0) -> str:
        done = call("broker", "groups", *arguments, "--config", file)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    (listed,) = json.loads(run("list", group, "--json"))
    assert listed == console.group(group)
    assert group in run("list")
    assert topic in run("list", group)
    assert f"{topic}:0: 3 becomes 5" in run("reset", group, "--to", "latest", "--dry-run")
    assert shown(console.group(group)) == [(3, 5, 2), (1, 5, 4)]
    assert "offsets reset" in run("reset", group, "--to", "latest", "--yes", "--reason", "moved")
    (listed,) = json.loads(run("list", group, "--json"))
    assert [each["committed_offset"] for each in listed["offsets"]] == [5, 5]
    assert console.audit()[-1]["reason"] == "moved"
    for wrong in (("--to", "soon"), ("--to", "latest", "--topic", "a:b")):
        assert "must be" in run("reset", group, *wrong, code=2)
    with member() as consumer:

        def joined() -> bool:
            assert consumer.poll(0.1) is None, "the group is at the end"
            return bool(consumer.assignment())

        wait_for(joined, "the member to join")
        refused = run("reset", group, "--to", "earliest", "--yes", code=2)
        assert "has 1 member (reader at 127.0.0.1)" in refused


def test_records_that_are_produced_later_are_not_skipped(
    console: Console, topic: str, group: str, member: Join, broker: BrokerProcess
) -> None:
    """GIVEN the page of a reset to the latest offsets WHEN more is produced before it is confirmed
    THEN the group reads that; and WHEN it has committed since THEN the reset is refused."""
    consume_some(member, topic)
    wait_until_empty(console, group)
    page = console.page("/console/broker/reset", group=group, to="latest")
    form = {each["name"]: each.get("value", "") for each in page.all("input") if "name" in each}
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"later", partition=0)
    assert producer.flush(LONG_S) == 0
    console.submit("/console/broker/reset", form)
    assert shown(console.group(group)) == [(5, 6, 1), (5, 5, 0)]
    del form["csrf"]
    again = console.reset(dry_run=False, **form)
    assert (again.status_code, "have changed since" in again.text) == (409, True)


def test_a_member_that_joins_during_a_reset_reads_from_there(
    broker: BrokerProcess, console: Console, topic: str, group: str, member: Join
) -> None:
    """GIVEN a reset that has the lock of the group WHEN a member joins THEN it waits for the reset,
    and reads from the new offsets."""
    consume_some(member, topic)
    wait_until_empty(console, group)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with member() as consumer, broker.database.connect() as connection:
        with connection.transaction():
            connection.execute(GROUP_LOCK, (group,))

            def waits() -> bool:
                assert consumer.poll(0.1) is None
                return broker.database.query(waiting) == [(1,)]

            wait_for(waits, "the member to wait")
            order = resets.Order(group=group, to=4)
            resets.perform(connection, order, data=console.house.data, user="ann")
        assert read(consumer, 2) == [(0, 4), (1, 4)]
        assert console.reset(group=group, to="earliest").status_code == 409


def test_members_of_a_broker_that_was_killed_do_not_count(
    database: Database, group: str, tmp_path: Path
) -> None:
    """GIVEN a broker with a group WHEN it is killed THEN the page says that no broker serves and
    that the group is empty, a reset is possible, and the next broker begins without members."""
    process = BrokerProcess(database, tmp_path)
    process.init()
    process.start()
    house = House(tmp_path / "data", source={"dsn": database.dsn})
    with serving(house) as url, closing(Console(house, url)) as console:
        console.log_in()
        topic = filled_topic(process.bootstrap)
        with joined(process.bootstrap, group, topic) as consumer:
            read(consumer, PARTITIONS * RECORDS)
            consumer.commit(asynchronous=False)
            assert console.document()["serving"]["address"] == "127.0.0.1"
            process.kill()
            wait_for(lambda: console.document()["serving"] is None, "the end of its session")
            rows = "SELECT group_id FROM kafka.groups"
            assert database.query(rows) == [(group,)]
            assert "no broker serves this database" in console.page().text
            assert (console.group(group)["state"], console.group(group)["members"]) == ("Empty", [])
            assert console.reset(group=group, to="earliest").status_code == 202
        process.start()
        assert database.query(rows) == []
        assert process.stop() == 0


def test_a_database_without_the_tables_or_with_locked_ones(
    database: Database, tmp_path: Path
) -> None:
    """GIVEN a database without the broker's tables, and then one whose tables a session has locked,
    WHEN the page is loaded THEN it says what is wrong, and how the tables are created."""
    house = House(tmp_path / "data", source={"dsn": database.dsn})
    with serving(house) as url, closing(Console(house, url)) as console:
        console.log_in()
        assert "tailrace broker --init" in console.page().text
        assert console.document()["problem"]["code"] == "BAD_CONFIG"
        assert console.reset(group="g", to="latest").status_code == 409
        BrokerProcess(database, tmp_path).init()
        wait_for(lambda: not console.document()["problem"], "the tables to be shown")
        assert "There are no topics" in console.page().text
        assert console.reset(group="g", to="latest").status_code == 404
        with database.connect() as connection, connection.transaction():
            connection.execute("LOCK TABLE kafka.topics")
            wait_for(lambda: bool(console.document()["problem"]), "the limit on time")
            assert "canceling statement due to statement timeout" in console.page().text


def test_a_role_that_does_not_see_sessions(broker: BrokerProcess) -> None:
    """GIVEN a role without pg_read_all_stats WHEN it asks for the broker THEN there is one, at an
    address that it does not see."""
    role = f"r{uuid.uuid4().hex[:8]}"
    with broker.database.connect() as connection:
        seen = serving_broker(connection)
        connection.execute(f"CREATE ROLE {role}".encode())
        try:
            connection.execute(f"SET ROLE {role}".encode())
            hidden = serving_broker(connection)
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f"DROP ROLE {role}".encode())
    assert seen is not None
    assert hidden is not None
    assert (seen.address, seen.since is None) == ("127.0.0.1", False)
    assert (hidden.address, hidden.since, hidden.pid) == ("unknown", None, seen.pid)
