"""RabbitMQ fails while processes are killed: each change is delivered or parked, keys in order.

Rows have counters that only grow. The broker is killed and restarted, its connections are cut, its
queues are full for a while, and one routing key has no queue. In the end each change has arrived or
is parked, no counter has arrived before a smaller one of its row, and a retry delivers the rest.
"""

from __future__ import annotations

import json
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import amqp
import pytest

from tailrace.testing import EmbeddedRabbitMQ, TcpProxy
from tests.command import call
from tests.faults import soak
from tests.faults.path import System, kill, victims
from tests.faults.test_parking import (
    TABLES,
    Change,
    Counting,
    committed,
    in_order,
    parked,
)
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

CI_FAULTS = 4
FAULTS = ("cut", "worker", "driver", "broker")
EXCHANGE = "faults"
LOST = 7
"""The changes of rows that are multiples of it have a routing key without a queue."""


class Queues:
    """Two small quorum queues that reject messages when they are full, and what was in them."""

    def __init__(self, server: EmbeddedRabbitMQ) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.arrived: dict[str, list[Change]] = {"plain": [], "lanes": []}

    def client(self) -> amqp.Connection:
        return amqp.Connection(f"127.0.0.1:{self._server.port}", login_method="PLAIN")

    def declare(self) -> None:
        with self.client() as client:
            channel = client.channel()
            channel.exchange_declare(EXCHANGE, "topic", durable=True, auto_delete=False)
            arguments = {
                "x-queue-type": "quorum",
                "x-max-length": 300,
                "x-overflow": "reject-publish",
            }
            for name in self.arrived:
                channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
                channel.queue_bind(name, EXCHANGE, f"{name}.kept")

    def bind_lost(self) -> None:
        """Bind the routing keys that reach no queue."""
        with self.client() as client:
            for name in self.arrived:
                client.channel().queue_bind(name, EXCHANGE, f"{name}.lost")

    def _run(self) -> None:
        """Consume in the order of arrival, with pauses in which queues fill."""
        while not self._stop.wait(0.2):
            try:
                with self.client() as client:
                    for name, found in self.arrived.items():
                        self._consume(client.channel(), name, found)
            except (amqp.AMQPError, OSError):
                continue

    def _consume(self, channel: Any, name: str, found: list[Change]) -> None:
        for _ in range(500):
            message = channel.basic_get(name, no_ack=True)
            if message is None:
                return
            row = json.loads(message.body)["after"]
            found.append((row["id"], row["n"]))

    def __enter__(self) -> Queues:
        self.declare()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def server(rabbitmq_available: None) -> Iterator[EmbeddedRabbitMQ]:
    with EmbeddedRabbitMQ() as made:
        yield made


@pytest.fixture
def queues(server: EmbeddedRabbitMQ) -> Iterator[Queues]:
    with Queues(server) as made:
        yield made


@pytest.fixture
def proxy(server: EmbeddedRabbitMQ) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", server.port) as made:
        yield made


@pytest.fixture
def system(victim_database: Database, proxy: TcpProxy, tmp_path: Path) -> Iterator[System]:
    sink = {"type": "rabbitmq", "url": f"amqp://127.0.0.1:{proxy.port}", "timeout_s": 20}
    sink |= {"exchange": EXCHANGE, "declare": "none", "max_outstanding": 200}
    retry = {"attempts": 100, "first_s": 0.01, "max_s": 0.5, "max_elapsed_s": 600}
    common: dict[str, Any] = {"max_open_s": 3, "retry": retry, "sink": sink}
    route = f"concat('{{}}', if(after.id % {LOST} = 0, '.lost', '.kept'))"
    pipelines = {
        "plain": {**common, "route": route.format("plain")},
        "lanes": {**common, "route": route.format("lanes"), "lanes": 2},
    }
    made = System(victim_database, tmp_path, pipelines, tables=TABLES)
    yield made
    made.kill()


def strike(
    fault: str, system: System, server: EmbeddedRabbitMQ, proxy: TcpProxy, rng: random.Random
) -> None:
    print(fault, flush=True)
    match fault:
        case "cut":
            proxy.cut()
        case "broker":
            server.kill()
            server.start()
        case _:
            found = wait_for(lambda: victims(system.data)[fault])
            kill(rng.choice(found))


def run(
    system: System,
    server: EmbeddedRabbitMQ,
    proxy: TcpProxy,
    queues: Queues,
    seed: int,
    faults: int,
) -> None:
    rng = random.Random(seed)
    system.start()
    names = list(system.pipelines)
    wait_for(lambda: all(system.state(name) == "running" for name in names), system.output)
    with Counting(system.database, seed):
        time.sleep(rng.uniform(2, 4))
        for number in range(faults):
            strike(FAULTS[number % len(FAULTS)], system, server, proxy, rng)
            time.sleep(rng.uniform(3, 8))
    end = system.captured()
    everything = committed(system)

    def decided(name: str) -> bool:
        arrived = set(queues.arrived[name])
        return system.reached(name, end) and everything <= arrived | parked(system, name)

    def delivered(name: str) -> bool:
        return not parked(system, name) and everything <= set(queues.arrived[name])

    for name in names:
        wait_for(partial(decided, name), partial(system.progress, name))
        found, waiting = queues.arrived[name], parked(system, name)
        lost = {change for change in everything if change[0] % LOST == 0}
        repeated = len(found) - len(set(found))
        print(f"{name}: {len(everything)} changes, {len(waiting)} parked, {repeated} repeated")
        assert waiting == lost
        assert in_order(found), name
    queues.bind_lost()
    for name in names:
        done = call("parked", "retry", name, "--all", "--config", system.folder / "tailrace.yml")
        assert done.returncode == 0, done.stderr
    for name in names:
        wait_for(partial(delivered, name), partial(system.progress, name))
        assert in_order(queues.arrived[name]), name
    assert system.stop() == 0


@pytest.mark.timeout(900)
def test_every_change_arrives_or_is_parked(
    system: System, server: EmbeddedRabbitMQ, proxy: TcpProxy, queues: Queues, seed: int
) -> None:
    run(system, server, proxy, queues, seed, CI_FAULTS)


@pytest.mark.soak
def test_every_change_arrives_or_is_parked_for_long(
    system: System, server: EmbeddedRabbitMQ, proxy: TcpProxy, queues: Queues, seed: int
) -> None:
    run(system, server, proxy, queues, seed, soak.rounds(every=25))
