"""Limits of connections and memory: a client that uses too much waits or is closed, alone."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tailrace.broker.limits import Limits
from tests.fix_broker import BrokerProcess
from tests.integration.broker.embedded import MB, EmbeddedBroker, alive, refused, topic
from tests.integration.broker.raw import ClosedError, Raw, batch, fetch, produce
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fix_postgres import Database


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
    wait_for(lambda: not served.broker.memory.used, "its memory")


@pytest.mark.long
def test_idle_connections_are_closed(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    served = inside(Limits(idle_s=5))
    name = topic(database, served.port)
    with Raw(served.port) as waiting, Raw(served.port) as idle, Raw(served.port) as half:
        # A client that waits for a response is not idle.
        waiting.send(1, 11, fetch(name, wait=timedelta(seconds=15)))
        half.link.sendall(b"\0\0")
        assert idle.closed()
        assert half.closed()
        assert waiting.receive()
    assert refused(served, "idle") >= 2


def test_a_slow_login_is_closed(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    served = inside(Limits(login_s=0.5))
    database.execute("INSERT INTO kafka.users VALUES ('ann')")
    wait_for(lambda: bool(served.broker.access.users), "the user")
    with Raw(served.port) as raw:
        with contextlib.suppress(ClosedError):  # it may be closed before the answer
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
    wait_for(lambda: alive_again(broker.port), "room")
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
        wait_for(lambda: bool(served.broker.memory.used), "the first")
        other.link.sendall(struct.pack(">i", 2 * MB) + bytes(MB))
        wait_for(lambda: bool(served.broker.memory.waiting), "the second")
        assert small.ask(3, 9, {"topics": []}).brokers


@pytest.mark.long
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
            most = max(most, served.used)
            time.sleep(0.002)
    # One response may be larger than the budget; it is then the only one.
    assert most <= 40 * MB + 16 * MB
    assert refused(served, "slow") > 0
    for each in idle:
        each.link.close()
    wait_for(lambda: not served.used, "their memory")


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
    wait_for(lambda: not served.used, "their memory")


def test_disconnected_producers_release_memory(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """Producers that disconnect at once: their batches count until they are written."""
    served = inside(Limits(memory_bytes=4 * MB))
    name = topic(database, served.port)
    for number in range(20):
        with Raw(served.port) as raw:
            raw.send(0, 9, produce(name, batch(bytes([number]) * MB)))
    wait_for(lambda: served.broker.tally.batches == 20, "their batches")
    wait_for(lambda: not served.broker.memory.used, "their memory")
    assert alive(served.port)


def test_clients_that_do_not_read_delay_no_producer(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """GIVEN consumers that do not read their responses, for as long as they like, and more of them
    that wait for memory THEN producers have the rest of the memory."""
    served = inside(Limits(memory_bytes=16 * MB, stalled_s=3600))
    name = topic(database, served.port)
    with Raw(served.port) as raw:
        for _ in range(4):
            raw.ask(0, 9, produce(name, batch(bytes(4 * MB))))
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            slow = stack.enter_context(Raw(served.port))
            slow.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.send(1, 11, fetch(name, max_bytes=16 * MB))
        wait_for(lambda: served.broker.memory_waiting, "consumers that wait")
        with Raw(served.port) as raw:
            for _ in range(4):
                done = raw.ask(0, 9, produce(name, batch(bytes(MB))))
                assert not done.responses[0].partition_responses[0].error_code
        assert served.broker.memory_waiting
    wait_for(lambda: not served.used, "their memory")
