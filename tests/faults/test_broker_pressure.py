"""The broker under pressure: many groups and partitions, clients that hang, a locked partition.

Other clients and partitions are served meanwhile, the memory stays within its limit, and in the end
every record is in the table once and every group has read it once.
"""

from __future__ import annotations

import collections
import contextlib
import re
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.testing import TcpProxy
from tailrace.testing.process import free_port
from tests import http
from tests.fix_broker import BrokerProcess
from tests.integration.broker.raw import Raw, fetch
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

MB = 1 << 20
BUDGET_MB, TAIL_MB, SLACK_MB = 32, 8, 128
"""The limits of the broker; slack is for buffers of sockets, parsed requests and the allocator."""
TOPICS, PARTITIONS, GROUPS = 50, 10, 200


class Pressed:
    """A broker with little memory, and what it reports."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._http = free_port()
        self.process = BrokerProcess(
            database, folder,
            *("--request-memory", str(BUDGET_MB * MB), "--tail-bytes", str(TAIL_MB * MB)),
            *("--port", str(self._http), "--idle-timeout", "20"),
        )  # fmt: skip
        self.process.init()
        self.process.start()
        self.database, self.bootstrap = database, self.process.bootstrap
        self._before = self._rss()

    def _rss(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss / MB)

    def check_memory(self) -> None:
        used = self._rss() - self._before
        assert used < BUDGET_MB + TAIL_MB + SLACK_MB, f"{used:.0f} MB more than at the start"

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = http.get(f"http://127.0.0.1:{self._http}/status").json()
        return found

    def answered(self, api: str) -> float:
        """The number of requests of a kind that have a response."""
        text = http.get(f"http://127.0.0.1:{self._http}/metrics").text
        found = re.search(rf'^tailrace_broker_requests_total{{api="{api}"}} (\S+)$', text, re.M)
        return float(found[1]) if found else 0.0

    def create(self, *topics: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        created = admin.create_topics([NewTopic(name, partitions, 1) for name in topics])
        for done in created.values():
            done.result(LONG_S)

    def rows(self, topic: str) -> list[tuple[int, int, bytes]]:
        """Partition, offset and value of every record."""
        return self.database.query(
            'SELECT partition, "offset", value FROM kafka.records WHERE topic = %s ORDER BY 1, 2',
            topic,
        )


@pytest.fixture
def pressed(victim_database: Database, tmp_path: Path) -> Iterator[Pressed]:
    made = Pressed(victim_database, tmp_path)
    yield made
    output = made.process.output
    made.process.kill()
    assert "broker.connection_failed" not in output


class Writing:
    """A producer that keeps what was acknowledged, and what has failed."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self.acknowledged: list[tuple[int, int, bytes]] = []
        self.failed: list[str] = []
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self._client = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 5,
                "message.timeout.ms": LONG_S * 1000,
                "on_delivery": self._delivered,
                "log_level": 0,
            }
            | given
        )

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(error.name())
        else:
            self.acknowledged.append((message.partition(), message.offset(), message.value()))

    def write(self, topic: str, partition: int, *values: bytes) -> None:
        for value in values:
            self._client.produce(topic, value, partition=partition)

    def poll(self) -> None:
        self._client.poll(0.01)

    def wait_until(self, condition: Any, what: str) -> None:
        def holds() -> bool:
            self.poll()
            return bool(condition())

        wait_for(holds, what)

    def flush(self) -> None:
        assert self._client.flush(LONG_S) == 0


def consumer(bootstrap: str, group: str, **settings: Any) -> Consumer:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
        | given
    )


def values(count: int, name: str = "v") -> list[bytes]:
    return [f"{name}:{number}".encode() for number in range(count)]


def check_offsets(rows: list[tuple[int, int, bytes]]) -> None:
    """Offsets have no gaps."""
    for partition in {row[0] for row in rows}:
        found = [offset for number, offset, _ in rows if number == partition]
        assert found == list(range(len(found)))


@contextlib.contextmanager
def locked(pressed: Pressed, topic: str, partition: int) -> Iterator[None]:
    """A transaction of an application that has written to a partition, and then commits."""
    with pressed.database.connect() as connection, connection.transaction():
        connection.execute(
            "SELECT kafka.produce(%s, NULL, 'sql', partition => %s)", (topic, partition)
        )
        yield


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_locked_partition(pressed: Pressed, idempotent: bool) -> None:
    """GIVEN a partition that a transaction has locked, and a producer whose requests time out
    again and again THEN the other partitions are written and read; after the commit every record
    is in the table once, those of an idempotent producer in order."""
    pressed.create("ledger", partitions=4)
    writing = Writing(
        pressed.bootstrap, enable_idempotence=idempotent, request_timeout_ms=1000,
        retry_backoff_max_ms=200, batch_num_messages=50,
    )  # fmt: skip
    reading = consumer(pressed.bootstrap, "readers")
    reading.subscribe(["ledger"])
    with locked(pressed, "ledger", 0):
        for partition in range(4):
            writing.write("ledger", partition, *values(500))
        writing.wait_until(lambda: len(writing.acknowledged) == 1500, "the other partitions")
        assert {partition for partition, _, _ in writing.acknowledged} == {1, 2, 3}
        answered = pressed.answered("Produce")
        writing.wait_until(lambda: pressed.answered("Produce") > answered + 3, "timeouts")
        assert len(writing.acknowledged) == 1500
        found: set[tuple[int, int]] = set()
        wait_for(lambda: _read(reading, found) and len(found) == 1500, "their records")
        assert len(pressed.rows("ledger")) == 1500
    writing.flush()
    assert writing.failed == []
    rows = pressed.rows("ledger")
    check_offsets(rows)
    assert sorted(rows) == sorted([*writing.acknowledged, (0, 0, b"sql")])
    for partition in range(4):
        written = [value for number, _, value in rows if number == partition and value != b"sql"]
        assert sorted(written) == sorted(values(500))
        if idempotent:
            assert written == values(500)
    wait_for(lambda: _read(reading, found) and len(found) == 2001, "all records")
    reading.close()
    pressed.check_memory()


def _read(reading: Consumer, found: set[tuple[int, int]]) -> bool:
    for message in reading.consume(500, 0.1):
        assert message.error() is None, message.error()
        place: Any = (message.partition(), message.offset())
        assert place not in found, f"{place} was read twice"
        found.add(place)
    return True


def test_a_message_that_has_timed_out_is_never_written(pressed: Pressed) -> None:
    """GIVEN a locked partition WHEN message.timeout.ms of a producer has passed THEN the record
    has failed, and is not written when the partition is free again."""
    pressed.create("ledger", partitions=1)
    writing = Writing(pressed.bootstrap, request_timeout_ms=1000, message_timeout_ms=3000)
    writing._client.list_topics("ledger", 60)
    with locked(pressed, "ledger", 0):
        writing.write("ledger", 0, *values(10))
        writing.wait_until(lambda: len(writing.failed) == 10, "the timeout")
        assert set(writing.failed) == {"_MSG_TIMED_OUT"}
        # The last request of the producer may still wait: its own timeout is a second.
        wait_for(lambda: not pressed.status()["request_memory_bytes"], "the last request")
    later = Writing(pressed.bootstrap)
    later.write("ledger", 0, b"later")
    later.flush()
    assert later.failed == []
    assert [value for _, _, value in pressed.rows("ledger")] == [b"sql", b"later"]


def test_consumers_that_do_not_read(pressed: Pressed) -> None:
    """GIVEN consumers that request as much as they can, and read nothing THEN producers and other
    consumers are served, and the memory stays within its limit."""
    pressed.create("wide", "busy", partitions=PARTITIONS)
    writing = Writing(pressed.bootstrap, enable_idempotence=True, linger_ms=50)
    for partition in range(PARTITIONS):
        writing.write("wide", partition, *[bytes(100_000) for _ in range(40)])
        writing.flush()
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            slow = stack.enter_context(Raw(pressed.process.port))
            slow.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(10):
                slow.send(1, 11, fetch("wide", max_bytes=50 * MB))
        wait_for(lambda: pressed.status()["request_memory_waiting"], "consumers that wait")
        for partition in range(PARTITIONS):
            writing.write("busy", partition, *values(200))
        writing.flush()
        pressed.check_memory()
        reading = consumer(pressed.bootstrap, "readers")
        reading.subscribe(["busy"])
        found: set[tuple[int, int]] = set()
        total = 200 * PARTITIONS
        wait_for(lambda: _read(reading, found) and len(found) == total, "the records")
        reading.close()
        pressed.check_memory()
    assert writing.failed == []
    assert len(pressed.rows("busy")) == total
    wait_for(lambda: not pressed.status()["request_memory_bytes"], "their memory")


def test_members_that_vanish(pressed: Pressed) -> None:
    """GIVEN members of a group and producers whose network is gone, without the end of any
    connection THEN the other member reads all records, each once after the last commit, and the
    broker closes the connections."""
    pressed.create("shared", partitions=PARTITIONS)
    writing = Writing(pressed.bootstrap, enable_idempotence=True)
    host, _, port = pressed.bootstrap.partition(":")
    with TcpProxy(host, int(port)) as network, contextlib.ExitStack() as stack:
        # The broker's answers name its own address: only the raw connections are behind the proxy.
        gone = [stack.enter_context(Raw(network.port)) for _ in range(20)]
        for number, raw in enumerate(gone):
            joined = raw.ask(11, 3, _joining(f"group-{number}"))
            assert not joined.error_code
        network.black_hole()
        for raw in gone:
            raw.send(1, 11, fetch("shared"))
        reading = consumer(pressed.bootstrap, "group-0", session_timeout_ms=60_000)
        reading.subscribe(["shared"])
        for partition in range(PARTITIONS):
            writing.write("shared", partition, *values(100))
        writing.flush()
        found: set[tuple[int, int]] = set()
        total = 100 * PARTITIONS
        wait_for(lambda: _read(reading, found) and len(found) == total, "all records")
        wait_for(
            lambda: _read(reading, found) and pressed.status()["refused"].get("idle", 0) >= 20,
            "the broker to close the connections",
        )
        reading.close()
    pressed.check_memory()


def _joining(group: str) -> dict[str, Any]:
    metadata = ConsumerProtocolMemberMetadata(0, ["shared"], b"").encode()
    return {
        "group_id": group, "session_timeout": timedelta(seconds=6),
        "rebalance_timeout": timedelta(seconds=6), "member_id": "", "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }  # fmt: skip


class Group:
    """A consumer group of one member, which reads one topic."""

    def __init__(self, bootstrap: str, number: int) -> None:
        self.topic = f"topic-{number % TOPICS}"
        self.client = consumer(
            bootstrap,
            f"group-{number}",
            session_timeout_ms=60_000,
            max_poll_interval_ms=1_200_000,
        )
        self.client.subscribe([self.topic])
        self.found: set[tuple[int, int]] = set()


def test_many_groups_and_partitions(pressed: Pressed) -> None:
    """GIVEN 200 groups, 500 partitions, one of which is locked, consumers that do not read, and
    half-open connections THEN every group reads every record once."""
    pressed.create(*(f"topic-{number}" for number in range(TOPICS)), partitions=PARTITIONS)
    writing = Writing(pressed.bootstrap, enable_idempotence=True, request_timeout_ms=2000)
    groups = [Group(pressed.bootstrap, number) for number in range(GROUPS)]
    per_topic = 20 * PARTITIONS
    host, _, port = pressed.bootstrap.partition(":")
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(TcpProxy(host, int(port)))
        for _ in range(20):
            slow = stack.enter_context(Raw(pressed.process.port))
            slow.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            half = stack.enter_context(Raw(network.port))
            slow.send(1, 11, fetch("topic-1", max_bytes=50 * MB))
            half.send(1, 11, fetch("topic-1"))
        network.black_hole()
        with locked(pressed, "topic-0", 0):
            for number in range(TOPICS):
                for partition in range(PARTITIONS):
                    writing.write(f"topic-{number}", partition, *values(20))
            expected = TOPICS * per_topic - 20
            writing.wait_until(lambda: len(writing.acknowledged) == expected, "other partitions")
            rest = [group for group in groups if group.topic != "topic-0"]
            _read_all(rest, per_topic)
            pressed.check_memory()
        writing.flush()
        _read_all(groups, per_topic, {"topic-0": per_topic + 1})
    for group in groups:
        group.client.commit(asynchronous=False)
        group.client.close()
    assert writing.failed == []
    for number in range(TOPICS):
        rows = pressed.rows(f"topic-{number}")
        check_offsets(rows)
        counts = collections.Counter(value for _, _, value in rows if value != b"sql")
        assert counts == dict.fromkeys(values(20), PARTITIONS)
    committed = pressed.database.query('SELECT count(*), sum("offset") FROM kafka.consumer_offsets')
    assert committed == [(GROUPS * PARTITIONS, GROUPS * per_topic + GROUPS // TOPICS)]
    pressed.check_memory()


def _read_all(groups: list[Group], count: int, counts: dict[str, int] | None = None) -> None:
    def read() -> bool:
        for group in groups:
            for message in group.client.consume(500, 0):
                assert message.error() is None, message.error()
                place: Any = (message.partition(), message.offset())
                assert place not in group.found
                group.found.add(place)
        return all(len(group.found) == (counts or {}).get(group.topic, count) for group in groups)

    wait_for(read, "every group to read its topic")
