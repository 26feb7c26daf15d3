"""Limits: a client that uses too much waits or is closed, and no other client is affected."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
import threading
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import cramjam
import psutil
import pytest
from crc32c import crc32c

from tailrace.broker.broker import Broker, install
from tailrace.broker.limits import Limits
from tailrace.broker.server import Server
from tailrace.broker.settings import BrokerSettings
from tests.fix_broker import BrokerProcess
from tests.integration.broker.raw import ClosedError, Raw, batch, fetch, produce
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

MB = 1 << 20


class EmbeddedBroker:
    """A broker in a thread of this process, with any limits."""

    def __init__(self, dsn: str, limits: Limits) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._do(install(dsn))
        self.broker = self._do(self._make(dsn, limits))
        self._do(self.broker.start())
        self.server = Server(self.broker)
        self.port: int = self._do(self.server.start("127.0.0.1", 0))

    @staticmethod
    async def _make(dsn: str, limits: Limits) -> Broker:
        return Broker(dsn, BrokerSettings(), limits)

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._do(self.server.stop())
        self._do(self.broker.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def inside(database: Database) -> Iterator[Callable[[Limits], EmbeddedBroker]]:
    made: list[EmbeddedBroker] = []

    def make(limits: Limits) -> EmbeddedBroker:
        made.append(EmbeddedBroker(database.dsn, limits))
        return made[-1]

    yield make
    for each in made:
        each.close()
        assert each.broker.memory.used == 0


def topic(database: Database, port: int) -> str:
    """A new topic that the broker has in its catalog."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    database.query('SELECT kafka.create_topic(%s, 1, \'{"retention.ms": "-1"}\')', name)
    with Raw(port) as raw:
        assert not raw.ask(3, 9, {"topics": [{"name": name}]}).topics[0].error_code
    return name


def alive(port: int) -> bool:
    with Raw(port) as raw:
        return bool(raw.ask(3, 9, {"topics": []}).brokers)


def refused(served: EmbeddedBroker, reason: str) -> int:
    found: int = served.broker.tally.refused[reason]
    return found


def test_an_incomplete_request_is_closed(inside: Callable[[Limits], EmbeddedBroker]) -> None:
    served = inside(Limits(request_s=0.5, memory_bytes=MB))
    with Raw(served.port) as slow, Raw(served.port) as idle:
        # It has reserved ten megabytes, and sends one byte at a time.
        slow.link.sendall(struct.pack(">i", 10 * MB))
        with contextlib.suppress(OSError):
            for _ in range(60):
                slow.link.sendall(b"\0")
                time.sleep(0.1)
        assert slow.closed()
        assert refused(served, "slow") == 1
        assert idle.ask(3, 9, {"topics": []}).brokers
    wait_for(lambda: not served.broker.memory.used, "its memory", 10)


def test_idle_connections_are_closed(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    served = inside(Limits(idle_s=0.5))
    name = topic(database, served.port)
    with Raw(served.port) as idle, Raw(served.port) as half, Raw(served.port) as waiting:
        half.link.sendall(b"\0\0")
        # A client that waits for a response is not idle.
        waiting.send(1, 11, fetch(name, wait=timedelta(seconds=4)))
        assert idle.closed()
        assert half.closed()
        assert waiting.receive()
    assert refused(served, "idle") >= 2


def test_a_slow_login_is_closed(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    served = inside(Limits(login_s=0.5))
    database.execute("INSERT INTO kafka.users VALUES ('ann')")
    wait_for(lambda: bool(served.broker.access.users), "the user", 10)
    with Raw(served.port) as raw:
        raw.ask(17, 1, {"mechanism": "SCRAM-SHA-256"})
        assert raw.closed()
    assert refused(served, "login") == 1


def test_connections_over_the_limit_are_closed(database: Database, tmp_path: Path) -> None:
    broker = BrokerProcess(database, tmp_path, "--max-connections", "20")
    broker.init()
    broker.start()
    with contextlib.ExitStack() as held:
        kept: list[Raw] = []
        while len(kept) < 20:
            raw = held.enter_context(Raw(broker.port))
            # What asked whether it listens may still be there.
            with contextlib.suppress(ClosedError):
                assert raw.ask(3, 9, {"topics": []}).brokers
                kept.append(raw)
        for _ in range(50):
            with Raw(broker.port) as more:
                assert more.closed()
        assert all(raw.ask(3, 9, {"topics": []}).brokers for raw in kept)
    wait_for(lambda: alive_again(broker.port), "room", 10)
    assert 1 <= broker.output.count("broker.limit_reached") <= 10
    assert broker.stop() == 0


def alive_again(port: int) -> bool:
    try:
        return alive(port)
    except ClosedError:
        return False


def test_producers_wait_for_memory(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """Many producers at once, each with more than the budget: all of them succeed."""
    served = inside(Limits(memory_bytes=MB))
    name = topic(database, served.port)
    most = 0

    def one(results: list[int], number: int) -> None:
        with Raw(served.port) as raw:
            for round_ in range(3):
                values = produce(name, batch(bytes([number, round_]) * MB))
                done = raw.ask(0, 9, values).responses[0].partition_responses[0]
                results.append(done.error_code.value)

    results: list[int] = []
    threads = [threading.Thread(target=one, args=(results, number)) for number in range(12)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, served.broker.memory.used)
        time.sleep(0.002)
    assert results == [0] * 36
    # One at a time: a request of two megabytes, and its parsed records.
    assert most <= 5 * MB
    rows = database.query("SELECT count(*), count(DISTINCT value) FROM kafka.messages")
    assert rows == [(36, 36)]


def test_small_requests_do_not_wait_for_memory(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    served = inside(Limits(memory_bytes=MB))
    with Raw(served.port) as large, Raw(served.port) as small, Raw(served.port) as other:
        large.link.sendall(struct.pack(">i", 2 * MB) + bytes(MB))
        wait_for(lambda: bool(served.broker.memory.used), "the first", 10)
        other.link.sendall(struct.pack(">i", 2 * MB) + bytes(MB))
        wait_for(lambda: bool(served.broker.memory.waiting), "the second", 10)
        assert small.ask(3, 9, {"topics": []}).brokers


def test_clients_that_do_not_read_are_closed(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """They hold at most the budget, and are closed when other clients wait for memory."""
    served = inside(Limits(memory_bytes=16 * MB, stalled_s=1.0))
    name = topic(database, served.port)
    with Raw(served.port) as raw:
        for number in range(10):
            done = raw.ask(0, 9, produce(name, batch(bytes([number]) * (4 * MB))))
            assert not done.responses[0].partition_responses[0].error_code
    # From the table, not from memory.
    served.broker.tails.clear()
    idle = [Raw(served.port) for _ in range(8)]
    most = 0
    for each in idle:
        each.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(32):
            each.send(1, 11, fetch(name, max_bytes=40 * MB))
    with Raw(served.port) as raw:
        raw.send(1, 11, fetch(name, max_bytes=4 * MB))
        receiving = threading.Thread(target=raw.receive)
        receiving.start()
        while receiving.is_alive():
            most = max(most, served.broker.memory.used)
            time.sleep(0.002)
    # One response may be larger than the budget; it is then the only one.
    assert most <= 40 * MB + 16 * MB
    assert refused(served, "slow") > 0
    for each in idle:
        each.link.close()
    wait_for(lambda: not served.broker.memory.used, "their memory", 30)


def test_responses_reserve_memory_in_order(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """A fetch after a waiting request does not hold the memory that other clients need."""
    served = inside(Limits(memory_bytes=MB))
    name = topic(database, served.port)
    with Raw(served.port) as raw:
        raw.ask(0, 9, produce(name, batch(bytes(4 * MB))))
    nothing = topic(database, served.port)
    with Raw(served.port) as stuck, Raw(served.port) as raw:
        stuck.send(1, 11, fetch(nothing, wait=timedelta(seconds=300)))
        for _ in range(10):
            stuck.send(1, 11, fetch(name, max_bytes=4 * MB))
            stuck.send(0, 9, produce(name, batch(bytes(2 * MB))))
        for _ in range(3):
            found = raw.ask(1, 11, fetch(name, max_bytes=4 * MB))
            assert len(found.responses[0].partitions[0].records) > 4 * MB


def test_disconnected_producers_release_memory(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """Producers that disconnect at once: their batches count until they are written."""
    served = inside(Limits(memory_bytes=4 * MB))
    name = topic(database, served.port)
    for number in range(20):
        with Raw(served.port) as raw:
            raw.send(0, 9, produce(name, batch(bytes([number]) * MB)))
    wait_for(lambda: not served.broker.memory.used, "their memory", 30)
    assert alive(served.port)
    assert served.broker.tally.batches > 0


def packed(codec: int, body: bytes, count: int = 1) -> bytes:
    """A record batch with any codec and body."""
    rest = struct.pack(">hiqqqhii", codec, count - 1, 0, 0, -1, -1, -1, count) + body
    return struct.pack(">qiib", 0, len(rest) + 9, 0, 2) + struct.pack(">I", crc32c(rest)) + rest


BOMBS: dict[str, tuple[int, Callable[[bytes], Any]]] = {
    "gzip": (1, gzip.compress),
    "snappy": (2, cramjam.snappy.compress_raw),
    "lz4": (3, cramjam.lz4.compress),
    "zstd": (4, cramjam.zstd.compress),
}


@pytest.mark.parametrize("codec", BOMBS)
def test_decompression_bombs_are_refused(broker: BrokerProcess, codec: str) -> None:
    """Half a gigabyte, compressed as far as the codec can."""
    number, compress = BOMBS[codec]
    bomb = packed(number, bytes(memoryview(compress(bytes(512 * MB)))))
    name = topic(broker.database, broker.port)
    process = psutil.Process(broker.pid)
    before, most = process.memory_info().rss, 0
    with Raw(broker.port) as raw:
        if len(bomb) > 60 * MB:
            pytest.skip("compressed, it is still too large for a request")
        raw.send(0, 9, produce(name, bomb))
        answering = threading.Thread(target=raw.receive)
        answering.start()
        while answering.is_alive():
            most = max(most, process.memory_info().rss)
            time.sleep(0.001)
        found = raw.ask(0, 9, produce(name, bomb)).responses[0].partition_responses[0]
        assert found.error_code.name == "message_too_large"
        assert raw.ask(3, 9, {"topics": []}).brokers
    assert most - before < 160 * MB


def test_many_small_bombs_in_a_request_are_refused(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """The limit of a request holds for all of its batches together."""
    served = inside(Limits(request_bytes=8 * MB))
    name = topic(database, served.port)
    # Empty records of seven bytes each, which take much more memory.
    record = bytes((12, 0, 0, 0, 1, 1, 0))
    bomb = packed(1, gzip.compress(record * 300_000), 300_000)
    with Raw(served.port) as raw:
        answer = raw.ask(0, 9, produce(name, *[bomb] * 20)).responses[0]
    codes = [part.error_code.name for part in answer.partition_responses]
    assert codes.count("message_too_large") == 19
    wait_for(lambda: not served.broker.memory.used, "its memory", 60)


def test_a_repeated_topic_is_described_once(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    served = inside(Limits())
    database.query("SELECT kafka.create_topic('wide', 1000)")
    with Raw(served.port) as raw:
        found = raw.ask(3, 9, {"topics": [{"name": "wide"}] * 10_000})
    assert [len(each.partitions) for each in found.topics] == [1000]
