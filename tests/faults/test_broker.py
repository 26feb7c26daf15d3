"""Producers and a consumer group while the broker and PostgreSQL are killed or paused.

Idempotent producers write numbers; members of one group join, leave and commit what they have
read. In the end the table is checked: it has every acknowledged record once, those of a producer in
order, and offsets without gaps. The group has read all records, each at its offset. No member
started after a record that the group had not read: a member resumes from the group's position, and
reads again at most what was not committed.
"""

from __future__ import annotations

import collections
import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.errors import AlreadyRunningError
from tests.command import Service
from tests.faults import soak
from tests.faults.path import paused
from tests.fix_broker import BrokerProcess
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

PARTITIONS, PRODUCERS, CONSUMERS = 4, 8, 4
TOPIC = "ledger"
KILLS = ("broker", "postgres", "member")
PAUSES = ("pause", "pause", "member")
SHORT_S = (0.5, 4.0)
LONGER_S = (7.0, 12.0)
"""Longer than the session of a member of the group lasts."""
SOAK_S = (5.0, 90.0)


class Producing(threading.Thread):
    """Writes numbers to every partition until it is stopped; records what was acknowledged."""

    def __init__(self, bootstrap: str, name: int) -> None:
        super().__init__(daemon=True)
        self._client = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
                "log_level": 0,
            }
        )
        self._name = name
        self.stopping = threading.Event()
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.failed: list[str] = []

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged[message.value()] = (message.partition(), message.offset())

    @property
    def caught_up(self) -> bool:
        """Whether little waits to be acknowledged."""
        return len(self._client) < 1000

    def run(self) -> None:
        number = 0
        while not self.stopping.wait(0.005):
            for _ in range(5):
                value = b"%d:%d" % (self._name, number)
                try:
                    self._client.produce(
                        TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered
                    )
                except BufferError:
                    # The broker is paused, and the queue of the client is full.
                    break
                number += 1
            self._client.poll(0)
        assert self._client.flush(LONG_S) == 0


class Readings:
    """The records that the members of the group have read, in order of time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.all: list[tuple[int, int, bytes]] = []
        self.seen: set[tuple[int, int]] = set()

    def add(self, found: list[tuple[int, int, bytes]]) -> None:
        with self._lock:
            self.all += found
            self.seen |= {(partition, offset) for partition, offset, _ in found}


class Consuming(threading.Thread):
    """A member of the group."""

    def __init__(self, bootstrap: str, readings: Readings) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._readings = readings
        self.stopping = threading.Event()

    def run(self) -> None:
        client = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "log_level": 0,
            }
        )
        client.subscribe([TOPIC])
        while not self.stopping.is_set():
            found: list[Any] = [
                (message.partition(), message.offset(), message.value())
                for message in client.consume(500, 0.2)
                if message.error() is None
            ]
            if found:
                self._readings.add(found)
                with contextlib.suppress(KafkaException):
                    client.commit(asynchronous=False)
        client.close()


@pytest.fixture
def process(victim_database: Database, tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(victim_database, tmp_path)
    made.init()
    made.start()
    admin = AdminClient({"bootstrap.servers": made.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(LONG_S)
    yield made
    made.kill()


def rows(database: Database) -> list[tuple[int, int, bytes]]:
    return database.query('SELECT partition_id, "offset", value FROM kafka.messages ORDER BY 1, 2')


def check(database: Database, producers: list[Producing], readings: Readings) -> int:
    held = rows(database)
    place = {value: (partition, offset) for partition, offset, value in held}
    assert len(place) == len(held), "a record is in the table twice"
    ends = collections.Counter(partition for partition, _, _ in held)
    for partition, end in ends.items():
        offsets = [offset for found, offset, _ in held if found == partition]
        assert offsets == list(range(end))
    counted: dict[tuple[int, bytes], int] = collections.defaultdict(lambda: -1)
    for partition, _, value in held:
        name, _, number = value.partition(b":")
        assert int(number) > counted[partition, name], f"{value!r} is out of order"
        counted[partition, name] = int(number)
    for producer in producers:
        assert producer.failed == []
        for value, found in producer.acknowledged.items():
            assert place[value] == found
    assert readings.seen == set(place.values())
    due: dict[int, int] = collections.defaultdict(int)
    for partition, offset, value in readings.all:
        assert place[value] == (partition, offset)
        assert offset <= due[partition], "a member started after a record that was not read"
        due[partition] = max(due[partition], offset + 1)
    return len(held)


def run(
    process: BrokerProcess,
    seed: int,
    loops: int,
    *,
    kinds: tuple[str, ...] = KILLS,
    pause_s: tuple[float, float] = SHORT_S,
) -> int:
    rng = random.Random(seed)
    database = process.database
    producers = [Producing(process.bootstrap, name) for name in range(PRODUCERS)]
    readings = Readings()
    consumers = [Consuming(process.bootstrap, readings) for _ in range(CONSUMERS)]
    gone: list[Consuming] = []
    for thread in (*producers, *consumers):
        thread.start()
    for _ in range(loops):
        time.sleep(rng.uniform(0.5, 3))
        match rng.choice(kinds):
            case "pause":
                with paused(process.pid):
                    time.sleep(rng.uniform(*pause_s))
                # A message that no pause leaves the time to send expires after five minutes, and
                # what a client then sends again is not the broker's to recognise.
                wait_for(lambda: all(each.caught_up for each in producers), "the producers")
            case "broker":
                process.kill()
                process.start()
            case "postgres":
                database.server.kill()
                database.server.start()
            case "member":
                leaving = consumers.pop(rng.randrange(CONSUMERS))
                leaving.stopping.set()
                gone.append(leaving)
                consumers.append(Consuming(process.bootstrap, readings))
                consumers[-1].start()
    for producer in producers:
        producer.stopping.set()
    for producer in producers:
        producer.join(LONG_S)
        assert not producer.is_alive()
    written = {(partition, offset) for partition, offset, _ in rows(database)}
    wait_for(lambda: readings.seen >= written, "the group to read every record")
    for consumer in consumers:
        consumer.stopping.set()
    for consumer in (*consumers, *gone):
        consumer.join(LONG_S)
        assert not consumer.is_alive()
    return check(database, producers, readings)


@pytest.mark.timeout(600)
def test_killed_at_random(process: BrokerProcess, seed: int) -> None:
    assert run(process, seed, 4) > 0


@pytest.mark.soak
def test_killed_at_random_for_long(process: BrokerProcess, seed: int) -> None:
    records = run(process, seed, soak.rounds(every=5))
    print(f"{records} records, each once, in order")
    assert records > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("pause_s", [SHORT_S, LONGER_S], ids=["short", "longer"])
def test_paused_at_random(process: BrokerProcess, seed: int, pause_s: tuple[float, float]) -> None:
    assert run(process, seed, 3, kinds=PAUSES, pause_s=pause_s) > 0


@pytest.mark.soak
def test_paused_at_random_for_long(process: BrokerProcess, seed: int) -> None:
    loops = soak.rounds(every=100)
    records = run(process, seed, loops, kinds=PAUSES, pause_s=SOAK_S)
    print(f"{records} records, each once, in order")
    assert records > 0


class One:
    """A producer that sends one record at a time."""

    def __init__(self, bootstrap: str) -> None:
        self._client = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 300_000,
                "log_level": 0,
            }
        )
        self.errors: list[str | None] = []

    def send(self, value: bytes) -> None:
        """Send it, without waiting for the answer."""
        self._client.produce(TOPIC, value, partition=0, on_delivery=self._answered)
        self._client.poll(0)

    def _answered(self, error: Any, _message: Any) -> None:
        self.errors.append(None if error is None else str(error))

    def flush(self) -> None:
        assert self._client.flush(LONG_S) == 0
        assert set(self.errors) == {None}


def test_a_broker_that_wakes_after_its_successor_started_writes_nothing(
    process: BrokerProcess, tmp_path: Path
) -> None:
    """GIVEN a paused broker with a request that it has not read WHEN a second one starts THEN it is
    refused; and WHEN the lock's connection is terminated and a successor serves THEN the first one
    wakes up, writes nothing, and waits until it has the lock again."""
    database = process.database
    (tmp_path / "second").mkdir()
    second = BrokerProcess(database, tmp_path / "second")
    early, late = One(process.bootstrap), One(second.bootstrap)

    def values() -> list[bytes]:
        return [value for _, _, value in rows(database)]

    early.send(b"before")
    early.flush()
    with second:
        with paused(process.pid):
            early.send(b"while paused")
            assert Service.start(second).wait() == AlreadyRunningError.exit_code
            database.query(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
                "WHERE application_name = 'tailrace broker listener' AND datname = %s",
                database.name,
            )
            second.start()
            late.send(b"successor")
            late.flush()
        process.wait_until(
            lambda: "another broker serves this database" in process.output, "the first to wait"
        )
        assert values() == [b"before", b"successor"]
        late.send(b"successor again")
        late.flush()
        assert values() == [b"before", b"successor", b"successor again"]
        assert second.stop() == 0, second.output[-3000:]
    early.flush()
    assert values() == [b"before", b"successor", b"successor again", b"while paused"]
