"""The shadow while every process between the broker and Kafka is killed.

A librdkafka producer writes to the broker; `tailrace shadow` copies. Capture, Spark's driver, its
JVM and workers, PostgreSQL and Kafka are killed. In the end Kafka has the records of the table,
each once and in order; `verify` confirms it; and after `cutover` a group resumes in Kafka after the
last record that it read from the broker.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests import topics
from tests.command import run
from tests.faults.path import Supervisor, kill, victims
from tests.fix_broker import BrokerProcess
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing import EmbeddedKafka
    from tailrace.testing.process import Server
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

TOPIC, PARTITIONS = "orders", 4
OLD, NEW, READ = 30_000, 90_000, 20_000
KILLS = ("capture", "kafka", "postgres", "driver", "worker", "jvm")


class Shadowing(Supervisor):
    """`tailrace shadow` as a process, from a broker's database to a Kafka cluster."""

    def __init__(self, database: Database, folder: Path, bootstrap: str) -> None:
        self.data = folder / "shadow"
        self._variables = {"TAILRACE_DSN": database.dsn, "TAILRACE_SHADOW_DATA": str(self.data)}
        super().__init__(
            *("shadow", "--to", bootstrap, "--port", 0, "--replicas", 1),
            folder=folder,
            env=self._variables,
            file="shadow.out",
        )

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run("shadow", *words, env=self._variables, timeout_s=2 * LONG_S)

    def running(self, name: str) -> list[int]:
        """The processes of a kind, once there are some."""
        return wait_for(lambda: victims(self.data).get(name, []), f"a {name} to run")


@contextlib.contextmanager
def running_broker(database: Database, folder: Path) -> Iterator[BrokerProcess]:
    """A broker on a database, with the topic."""
    made = BrokerProcess(database, folder)
    made.init()
    made.start()
    create_topic(made.bootstrap)
    yield made
    made.kill()


@pytest.fixture
def broker(victim_database: Database, tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(victim_database, tmp_path) as made:
        yield made


@pytest.fixture
def shadow(broker: BrokerProcess, kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Shadowing]:
    with Shadowing(broker.database, tmp_path, kafka.bootstrap) as made:
        yield made


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    # The timestamps are of 2023: the default retention would delete the records.
    wanted = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin.create_topics([wanted])[TOPIC].result(LONG_S)


def produce(bootstrap: str, numbers: range, *, pause_s: float = 0.0) -> None:
    """Produce numbered records with keys and headers, in order within each partition."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
    )
    for number in numbers:
        while True:
            try:
                producer.produce(
                    TOPIC,
                    b"value %d" % number,
                    b"key %d" % (number % 1000),
                    partition=number % PARTITIONS,
                    timestamp=1_700_000_000_000 + number,
                    headers=[("n", b"%d" % number)] if number % 10 == 0 else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if pause_s and number % 500 == 0:
            producer.poll(0)
            time.sleep(pause_s)
    assert producer.flush(LONG_S) == 0


def consume(bootstrap: str, group: str, count: int) -> list[tuple[int, bytes]]:
    """Read `count` records as a member of a group, which commits them and leaves."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])
    found: list[Any] = []
    deadline = time.monotonic() + LONG_S
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            for message in consumer.consume(min(1000, count - len(found)), 0.2):
                assert message.error() is None, message.error()
                found.append((message.partition(), message.value()))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def kafka_records(bootstrap: str) -> list[list[tuple[Any, ...]]]:
    """The records in Kafka by partition: milliseconds, key, value, headers."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(PARTITIONS)]
    for message in topics.messages(bootstrap, TOPIC):
        headers: Any = message.headers() or []
        row = (message.timestamp()[1], message.key(), message.value(), list(headers))
        found[message.partition() or 0].append(row)
    return found


def broker_records(database: Database) -> list[list[tuple[Any, ...]]]:
    """The records in the broker's table, in the same form."""
    rows = database.query(
        'SELECT partition_id, floor(extract(epoch FROM "timestamp") * 1000)::bigint, key, value, '
        "coalesce(headers, '[]') FROM kafka.messages ORDER BY partition_id, \"offset\""
    )
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(PARTITIONS)]
    for partition, moment, key, value, headers in rows:
        plain = [(name, text.encode()) for name, text in headers]
        found[partition].append((moment, key, value, plain))
    return found


@pytest.mark.timeout(900)
def test_records_are_copied_once_while_processes_are_killed(
    broker: BrokerProcess, kafka: EmbeddedKafka, shadow: Shadowing, seed: int
) -> None:
    rng = random.Random(seed)
    produce(broker.bootstrap, range(OLD))
    first = consume(broker.bootstrap, "readers", READ)
    shadow.start()
    shadow.running("worker")
    writing = threading.Thread(
        target=produce, args=(broker.bootstrap, range(OLD, OLD + NEW)), kwargs={"pause_s": 0.1}
    )
    writing.start()
    for name in rng.sample(KILLS, len(KILLS)):
        time.sleep(rng.uniform(1, 4))
        if name in ("kafka", "postgres"):
            server: Server = kafka if name == "kafka" else broker.database.server
            server.kill()
            server.start()
            continue
        kill(rng.choice(shadow.running(name)))
    writing.join(LONG_S)
    assert not writing.is_alive()
    done = shadow.call("verify", "--json", "--wait", str(LONG_S))
    assert done.returncode == 0, done.stdout + done.stderr + shadow.output[-3000:]
    compared = json.loads(done.stdout)
    assert compared["safe"]
    assert sum(each["compared"] for each in compared["partitions"]) == OLD + NEW
    assert kafka_records(kafka.bootstrap) == broker_records(broker.database)
    moved = shadow.call("cutover", "--json")
    assert moved.returncode == 0, moved.stdout + moved.stderr
    rest = consume(kafka.bootstrap, "readers", OLD + NEW - READ)
    both = first + rest
    for partition in range(PARTITIONS):
        read = [value for place, value in both if place == partition]
        assert read == [value for _, _, value, _ in broker_records(broker.database)[partition]]
    assert shadow.stop(90) == 0
