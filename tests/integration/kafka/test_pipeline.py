"""Pipelines into a real Kafka: PostgreSQL, the log, Spark, and Kafka clients as readers."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import checkpoint
from tailrace.log.appender import Appender, Layout
from tailrace.log.lease import Lease
from tailrace.log.store import LocalStore
from tests import topics
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from tailrace.testing import EmbeddedKafka
    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]


def received(bootstrap: str, topic: str, count: int) -> list[Message]:
    """All committed messages of a topic, by partition and offset."""
    found = topics.messages(bootstrap, topic)
    assert len(found) == count
    return found


def payload(message: Message) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(message.value() or b"null")
    return value


@pytest.fixture(params=[False, True], ids=["plain", "transactional"])
def sink(request: pytest.FixtureRequest, kafka_server: EmbeddedKafka) -> dict[str, Any]:
    return {
        "type": "kafka",
        "bootstrap": kafka_server.bootstrap,
        "topic": "{database}.{table}",
        "transactional": request.param,
        "prefix": f"p{uuid.uuid4().hex[:8]}",
        "timeout_s": LONG_S,
    }


def test_every_change_arrives_once_in_order(
    database: Database, capture: Capturing, deliver: Delivering, sink: dict[str, Any]
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    captured = capture(database)
    delivery = deliver(captured, to=sink)
    database.execute("INSERT INTO users VALUES (1, 'ann'), (2, 'bob')")
    database.execute("UPDATE users SET name = 'anna' WHERE id = 1")
    database.execute("DELETE FROM users WHERE id = 2")
    captured.catch_up()
    assert delivery.run().events == 4
    topic = f"{database.name}.users"
    found = received(sink["bootstrap"], topic, 4)
    assert [payload(message)["data"] for message in found] == [
        {"id": 1, "name": "ann"},
        {"id": 2, "name": "bob"},
        {"id": 1, "name": "anna"},
        {"id": 2, "name": None},
    ]
    ids = [dict(message.headers() or ())["tailrace-id"] for message in found]
    assert len(set(ids)) == 4
    database.execute("INSERT INTO users VALUES (3, 'cyd')")
    captured.catch_up()
    assert delivery.run().events == 1
    assert payload(received(sink["bootstrap"], topic, 5)[-1])["data"] == {"id": 3, "name": "cyd"}


def test_lanes_and_partitions_keep_the_order_of_each_key(
    database: Database, capture: Capturing, deliver: Delivering, sink: dict[str, Any]
) -> None:
    database.execute("CREATE TABLE counters (id int PRIMARY KEY, n int)")
    captured = capture(database)
    delivery = deliver(captured, lanes=3, to=sink | {"partitions": 4})
    database.execute("INSERT INTO counters SELECT g, 0 FROM generate_series(1, 50) g")
    for _ in range(5):
        database.execute("UPDATE counters SET n = n + 1")
    captured.catch_up()
    assert delivery.run().events == 300
    seen: dict[int, list[int]] = defaultdict(list)
    places: dict[int, set[int]] = defaultdict(set)
    for message in received(sink["bootstrap"], f"{database.name}.counters", 300):
        row = payload(message)["data"]
        seen[row["id"]].append(row["n"])
        places[row["id"]].add(message.partition() or 0)
    assert seen == {key: [0, 1, 2, 3, 4, 5] for key in range(1, 51)}
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) == 4


def test_a_route_may_name_the_partition(
    database: Database, capture: Capturing, deliver: Delivering, sink: dict[str, Any]
) -> None:
    database.execute("CREATE TABLE places (id int PRIMARY KEY, shard int)")
    captured = capture(database)
    route = f"concat('{database.name}.routed/', shard)"
    delivery = deliver(captured, route=route, to=sink | {"partitions": 3})
    database.execute("INSERT INTO places SELECT g, g % 3 FROM generate_series(1, 30) g")
    captured.catch_up()
    assert delivery.run().events == 30
    for message in received(sink["bootstrap"], f"{database.name}.routed", 30):
        assert payload(message)["data"]["shard"] == message.partition()


def cut_off_last_batch(delivery: Delivery) -> None:
    """Leave the checkpoint as a crash does between delivery and Spark's commit."""
    commits = checkpoint.folder_of(delivery.data, delivery.name) / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / str(last)).unlink()


def begin_next_timeline(captured: Captured) -> None:
    """Continue the log as capture does after a failover."""
    store = LocalStore(captured.folder)
    lease = Lease.acquire(store)
    appender = Appender.open(store, lease, Layout())
    assert appender is not None
    with closing(appender):
        identity = appender.identity
        appender.change_identity(replace(identity, timeline=identity.timeline + 1))
    lease.release()


@pytest.mark.parametrize("sink", [True], ids=["transactional"], indirect=True)
def test_a_batch_cut_off_before_a_failover_is_not_sent_again(
    database: Database, capture: Capturing, deliver: Delivering, sink: dict[str, Any]
) -> None:
    """GIVEN a batch that Kafka holds and the checkpoint does not WHEN the log continues on a new
    timeline THEN the replay skips it, and delivers what follows."""
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    captured = capture(database)
    # A replay of an open batch begins where the batch has come to.
    delivery = deliver(captured, max_open_s=0, to=sink)
    database.execute("INSERT INTO users VALUES (1), (2)")
    captured.catch_up()
    assert delivery.run().events == 2
    cut_off_last_batch(delivery)
    database.execute("INSERT INTO users VALUES (3)")
    captured.catch_up()
    begin_next_timeline(captured)
    figures = delivery.run()
    assert (figures.state, figures.duplicates, figures.events) == ("stopped", 2, 1), figures
    found = received(sink["bootstrap"], f"{database.name}.users", 3)
    assert [payload(message)["data"]["id"] for message in found] == [1, 2, 3]
