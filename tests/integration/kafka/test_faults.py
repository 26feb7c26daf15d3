"""Kafka is killed in the middle of a batch and restarted: nothing is lost, repeats are bounded."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import SinkUnreachableError
from tailrace.position import ORIGIN
from tailrace.testing import TcpProxy
from tests.unit.sinks.rows import position, write
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.sinks.kafka.sink import Kafka
    from tailrace.testing import EmbeddedKafka
    from tests.integration.kafka.reading import Bench

pytestmark = pytest.mark.long

BATCH = 300
BATCHES = 8
ALL = list(range(BATCH * BATCHES))
KEYS = 13


def deliver(
    bench: Bench, sink: Kafka, *, middle: Callable[[int], None], failed: Callable[[], None]
) -> int:
    """Deliver as a pipeline does, with replays from the last flush; returns the failures."""
    number = failures = 0
    while number < BATCHES:
        start, end = number * BATCH, (number + 1) * BATCH
        try:
            sink.open(position(start - 1) if start else ORIGIN)
            write(sink, bench.rows(range(start, start + BATCH // 2), keys=KEYS))
            if not failures:
                middle(number)
            write(sink, bench.rows(range(start + BATCH // 2, end), keys=KEYS))
            receipt = sink.flush()
            assert receipt.messages + receipt.duplicates == BATCH
            number += 1
        except SinkUnreachableError:
            failures += 1
            failed()
    sink.close()
    return failures


def by_partition(bench: Bench) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for one in bench.held():
        found.setdefault(one.partition, []).append(one.number)
    return list(found.values())


def check_order(bench: Bench, *, exactly: bool, failures: int = 0) -> None:
    """Each partition is in order; only interrupted batches may repeat, from their start."""
    sequences = by_partition(bench)
    assert len(sequences) > 1
    assert sorted({number for sequence in sequences for number in sequence}) == ALL
    if exactly:
        assert all(sequence == sorted(set(sequence)) for sequence in sequences)
        return
    for sequence in sequences:
        backwards = [(before, after) for before, after in pairwise(sequence) if after <= before]
        assert len(backwards) <= failures
        for before, after in backwards:
            assert before // BATCH == after // BATCH
            assert after == next(one for one in sequence if one // BATCH == after // BATCH)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_broker_that_is_down_for_longer_than_the_timeout(
    brittle: EmbeddedKafka, brittle_bench: Bench, transactional: bool
) -> None:
    def middle(number: int) -> None:
        if number == 4:
            brittle.kill()

    sink = brittle_bench.sink(transactional=transactional, partitions=3, timeout_s=5)
    failures = deliver(brittle_bench, sink, middle=middle, failed=lambda: restart(brittle))
    assert failures
    check_order(brittle_bench, exactly=transactional, failures=failures)


def restart(server: EmbeddedKafka) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("transactional", [False, True])
def test_the_sink_waits_for_a_broker_that_restarts_in_time(
    brittle: EmbeddedKafka, brittle_bench: Bench, transactional: bool
) -> None:
    reached, dead = threading.Event(), threading.Event()
    failures: list[int] = []

    def middle(number: int) -> None:
        if number == 4:
            reached.set()
            assert dead.wait(LONG_S)

    def run() -> None:
        sink = brittle_bench.sink(transactional=transactional, partitions=3, timeout_s=90)
        failures.append(deliver(brittle_bench, sink, middle=middle, failed=lambda: None))

    thread = threading.Thread(target=run)
    thread.start()
    assert reached.wait(LONG_S)
    brittle.kill()
    dead.set()
    brittle.start()
    thread.join()
    assert failures == [0]
    check_order(brittle_bench, exactly=True)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_connection_that_drops_all_packets(
    kafka_server: EmbeddedKafka, bench: Bench, transactional: bool
) -> None:
    """The broker advertises its own address, so only the first connection hangs."""
    with TcpProxy("127.0.0.1", kafka_server.port) as proxy:
        proxy.black_hole()
        sink = bench.sink(
            bootstrap=f"127.0.0.1:{proxy.port}", timeout_s=1, transactional=transactional
        )
        with pytest.raises(SinkUnreachableError):
            sink.open(ORIGIN)


def test_a_frozen_broker_times_out(brittle: EmbeddedKafka, brittle_bench: Bench) -> None:
    bench = brittle_bench
    sink = bench.sink(timeout_s=10)
    sink.open(ORIGIN)
    write(sink, bench.rows(range(10)))
    sink.flush()
    with brittle.frozen():
        write(sink, bench.rows(range(10, 20)))
        with pytest.raises(SinkUnreachableError, match="nothing acknowledged for 10 s"):
            sink.flush()
    sink.close()

    def delivered() -> bool:
        try:
            with bench.opened(position(9), timeout_s=10) as sink:
                write(sink, bench.rows(range(10, 20)))
                sink.flush()
        except SinkUnreachableError:
            return False
        return True

    # It may take a frozen server more than ten seconds to serve again. A client that asked it
    # before may wait for its controller for ever; a pipeline tries again with another client.
    wait_for(delivered)
    assert sorted(set(bench.numbers())) == list(range(20))
