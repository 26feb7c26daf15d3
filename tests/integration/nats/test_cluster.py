"""A NATS cluster of three that loses its leaders while messages are sent."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest
import structlog

from tailrace.errors import SinkUnreachableError
from tailrace.jetstream.connection import NatsConnection
from tailrace.jetstream.stream import stream_info
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.nats.settings import NatsSink
from tailrace.sinks.nats.sink import JetStream
from tailrace.testing import EmbeddedNatsCluster
from tests.unit.sinks.rows import message_id, position, rows
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.long

TOTAL, STEP = 20_000, 4000
T = TypeVar("T")


@pytest.fixture
def cluster() -> Iterator[EmbeddedNatsCluster]:
    with EmbeddedNatsCluster() as started:
        yield started


def patiently(act: Callable[[], T]) -> T:
    """Retry as a pipeline does, while the cluster elects a leader."""
    deadline = time.monotonic() + LONG_S
    while True:
        try:
            return act()
        except SinkUnreachableError:
            assert time.monotonic() < deadline, "the cluster does not come back"
            time.sleep(0.5)


def held(settings: NatsSink) -> list[bytes]:
    """The ids in the stream, by sequence."""
    found: list[bytes] = []
    with contextlib.closing(NatsConnection.connect(settings, name="test")) as line:
        state = line.request(f"$JS.API.STREAM.INFO.{settings.stream.name}")["state"]
        name = f"all-{random.getrandbits(32):x}"
        config = {"name": name, "ack_policy": "none", "headers_only": True}
        line.request(
            f"$JS.API.CONSUMER.CREATE.CDC.{name}", {"stream_name": "CDC", "config": config}
        )
        deadline = time.monotonic() + LONG_S
        # The consumer may run on a replica that lags.
        while len(found) < state["messages"]:
            assert time.monotonic() < deadline, len(found)
            for message in line.pull(f"$JS.API.CONSUMER.MSG.NEXT.CDC.{name}", 1000):
                found.append(message.header.split(b"Nats-Msg-Id: ")[1].split(b"\r\n")[0])
    return found


def test_leaders_that_die_lose_nothing_and_repeat_nothing(cluster: EmbeddedNatsCluster) -> None:
    rng = random.Random(1)
    settings = NatsSink.model_validate(
        {
            "type": "nats",
            "url": cluster.url,
            "stream": {"replicas": 3, "duplicate_window_s": 10},
            "timeout_s": 3,
        }
    )
    sink = JetStream(settings, Lane(pipeline="test"))
    with structlog.testing.capture_logs() as logs:
        deliver_all(sink, settings, cluster, rng)
    # The server killed last may still be starting, and the cluster electing.
    found = patiently(lambda: held(settings))
    assert sorted(found) == sorted(message_id(n) for n in range(TOTAL))
    # A leader can lose messages whose successors are stored; then the sink logs it.
    if "nats.order_damaged" not in [line["event"] for line in logs]:
        assert found == [message_id(n) for n in range(TOTAL)]


def deliver_all(
    sink: JetStream, settings: NatsSink, cluster: EmbeddedNatsCluster, rng: random.Random
) -> None:
    done, kills = 0, 0
    while done < TOTAL:
        since = position(done - 1) if done else ORIGIN
        patiently(partial(sink.open, since))
        info = patiently(lambda: stream_info(settings, "CDC"))
        leader = cluster.servers[info["cluster"]["leader"]]
        killer = threading.Timer(rng.uniform(0.01, 0.1), leader.kill)
        if kills < 3:
            killer.start()
            kills += 1
        try:
            for start in range(done, done + STEP, 500):
                sink.write(rows(range(start, start + 500), size=1000))
            sink.flush()
            done += STEP
        except SinkUnreachableError:
            pass
        if killer.ident is not None:
            killer.join()
            leader.start()
    sink.close()
