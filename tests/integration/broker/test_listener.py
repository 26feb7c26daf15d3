"""The listener: a malformed request closes its own connection, and no other."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tailrace.broker import broker as module
from tailrace.broker.settings import BrokerSettings
from tailrace.broker.tables.schema import BROKER_LOCK
from tailrace.errors import AlreadyRunningError
from tests.command import run
from tests.fix_broker import BrokerProcess
from tests.integration.broker.clients import Librdkafka
from tests.integration.broker.raw import Raw, join
from tests.integration.broker.samples import create_topic, sample_records
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

    from tests.fix_postgres import Database


def answer(port: int, data: bytes) -> bytes:
    """The response before the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), LONG_S) as link:
        link.sendall(data)
        found = b""
        while len(found) < 4 or len(found) < 4 + struct.unpack(">i", found[:4])[0]:
            piece = link.recv(65536)
            if not piece:
                break
            found += piece
        return found


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        framed(b""),
        framed(b"\0"),
        framed(struct.pack(">hhi", 3, 99, 1)),
        framed(struct.pack(">hhi", 999, 0, 1)),
        framed(struct.pack(">hhih", 0, 9, 1, -1) + b"\xff" * 50),
        framed(struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1)),
    ],
)
def test_malformed_requests_close_their_connection(broker: BrokerProcess, data: bytes) -> None:
    topic = create_topic(broker.bootstrap)
    assert answer(broker.port, data) == b""
    client = Librdkafka(broker.bootstrap)
    client.produce(topic, sample_records(3))
    assert client.consume(topic, 3) == sample_records(3)


def test_a_newer_client_gets_the_supported_versions(broker: BrokerProcess) -> None:
    found = answer(broker.port, framed(struct.pack(">hhih", 18, 99, 7, -1)))
    correlation, error = struct.unpack_from(">ih", found, 4)
    assert (correlation, error) == (7, 35)


def test_a_database_has_one_broker(broker: BrokerProcess) -> None:
    second = run("broker", "--dsn", broker.database.dsn, "--listen", "127.0.0.1:0")
    assert second.returncode == 7
    assert "another broker serves this database" in second.stderr


def test_a_broker_waits_a_moment_for_the_lock(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL may not have noticed yet that the broker before was killed."""
    tried, take_lock = threading.Event(), module._take_lock

    async def attempt(connection: psycopg.AsyncConnection[Any]) -> None:
        try:
            await take_lock(connection)
        except AlreadyRunningError:
            tried.set()
            raise

    async def serve() -> None:
        broker = module.Broker(database.dsn, BrokerSettings())
        await broker.start()
        await broker.stop()

    monkeypatch.setattr(module, "_TAKEOVER_S", LONG_S)
    monkeypatch.setattr(module, "_take_lock", attempt)
    asyncio.run(module.install(database.dsn))
    with ThreadPoolExecutor(1) as pool:
        with database.connect() as before:
            before.execute("SELECT pg_advisory_lock(%s)", (BROKER_LOCK,))
            started = pool.submit(lambda: asyncio.run(serve()))
            assert tried.wait(LONG_S)
        started.result(LONG_S)


def test_missing_tables_are_an_error(database: Database) -> None:
    found = run("broker", "--dsn", database.dsn)
    assert found.returncode == 2
    assert "tailrace broker --init" in found.stderr


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "nowhere", "127.0.0.1:99999", "db:9092"])
def test_invalid_addresses_are_refused(database: Database, listen: str) -> None:
    found = run("broker", "--dsn", database.dsn, "--listen", listen)
    assert found.returncode == 2, found.stderr


@pytest.fixture
def own_broker(database: Database, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose lock a test may take."""
    process = BrokerProcess(database, tmp_path)
    process.init()
    process.start()
    yield process
    assert process.stop() == 0, process.output


def test_a_broker_that_lost_its_lock_stops_serving(own_broker: BrokerProcess) -> None:
    """GIVEN a broker with members of a group WHEN its lock is lost and another process takes it
    THEN the broker closes all connections, accepts none and writes nothing, until it has the lock
    again. It does not know the members then: they join again."""
    database = own_broker.database
    topic = create_topic(own_broker.bootstrap)
    client = Librdkafka(own_broker.bootstrap)
    client.produce(topic, sample_records(10))
    assert len(client.consume(topic, 10, group="readers")) == 10
    locks = """
        FROM pg_locks WHERE locktype = 'advisory'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    ((lock,),) = database.query(f"SELECT (classid::bigint << 32) | objid::bigint {locks}")
    with Raw(own_broker.port) as member, database.connect() as other:
        joined = member.ask(11, 3, join("members"))
        session = {
            "group_id": "members",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
        }
        assert member.ask(12, 2, session).error_code.name == "none"
        # Waits behind the broker, so that nobody else can be next.
        waiting = threading.Thread(
            target=other.execute, args=("SELECT pg_advisory_lock(%s)", [lock])
        )
        waiting.start()
        wait_for(lambda: database.query(f"SELECT 1 {locks} AND NOT granted"), "the other to wait")
        database.query(f"SELECT pg_terminate_backend(pid) {locks} AND granted")
        waiting.join(LONG_S)
        assert member.closed()
        own_broker.wait_until(
            lambda: "another broker serves this database" in own_broker.output, "the broker to wait"
        )
        with Raw(own_broker.port) as refused:
            assert refused.closed()
        rows = database.query("SELECT count(*) FROM kafka.messages")
        producer = Producer({"bootstrap.servers": own_broker.bootstrap, "log_level": 0})
        producer.produce(topic, b"late")
        assert producer.flush(2) == 1
        assert database.query("SELECT count(*) FROM kafka.messages") == rows
        other.execute("SELECT pg_advisory_unlock(%s)", [lock])
        assert producer.flush(60) == 0
    with Raw(own_broker.port) as member:
        assert member.ask(12, 2, session).error_code.name == "unknown_member_id"
    assert len(client.consume(topic, 11)) == 11
