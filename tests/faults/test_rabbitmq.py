"""RabbitMQ fails while processes are killed: each change is delivered or parked, keys in order.

Rows have counters that only grow. The broker is killed and restarted, its connections are cut, its
queues are full for a while, and one routing key has no queue. In the end each change has arrived or
is parked, no counter has arrived before a smaller one of its row, and a retry delivers the rest.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import amqp
import pytest

from tailrace.parking import control
from tailrace.parking.listing import Listing
from tailrace.parking.parking import folder_of, store_of
from tailrace.parking.selection import Selection
from tailrace.testing import EmbeddedRabbitMQ, TcpProxy
from tests.command import call
from tests.faults import soak
from tests.faults.path import System, kill, victims
from tests.faults.test_parking import COMMITTED, TABLES, Counting, in_order, parked
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.destination import Change
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

CI_FAULTS = 4
FAULTS = ("cut", "worker", "driver", "broker")
EXCHANGE = "faults"
LOST = 7
"""The changes of rows that are multiples of it have a routing key without a queue."""


class Broker:
    """Behind a proxy, with two small quorum queues that reject messages when they are full.

    A consumer notes what was in them, in the order of arrival.
    """

    def __init__(self, server: EmbeddedRabbitMQ, proxy: TcpProxy) -> None:
        self._server = server
        self._proxy = proxy
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.arrived: dict[str, list[Change]] = {"plain": [], "lanes": []}

    @property
    def url(self) -> str:
        """The address for pipelines."""
        return f"amqp://127.0.0.1:{self._proxy.port}"

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
        """Consume until the end of the block, with a new connection after each crash."""
        while not self._stop.wait(0.2):
            try:
                with self.client() as client:
                    self._consume(client)
            except (amqp.AMQPError, OSError):
                continue

    def _consume(self, client: amqp.Connection) -> None:
        """Note and acknowledge what arrives, with pauses in which queues fill."""
        for name in self.arrived:
            channel = client.channel()
            channel.basic_qos(0, 100, False)
            channel.basic_consume(name, callback=partial(self._note, name, channel))
        while not self._stop.is_set():
            if int(time.monotonic()) % 4 == 0:
                self._stop.wait(0.5)
            with contextlib.suppress(TimeoutError):
                client.drain_events(timeout=0.2)

    def _note(self, name: str, channel: Any, message: amqp.Message) -> None:
        """Acknowledged after it: a broker that is killed delivers again what it must."""
        row = json.loads(message.body)["after"]
        self.arrived[name].append((row["id"], row["n"]))
        channel.basic_ack(message.delivery_tag)

    def restart(self) -> None:
        """A crash, and a start."""
        self._server.kill()
        self._server.start()

    def cut(self) -> None:
        """Lose the connections of the pipelines."""
        self._proxy.cut()

    def __enter__(self) -> Broker:
        self.declare()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def broker(rabbitmq_available: None) -> Iterator[Broker]:
    with (
        EmbeddedRabbitMQ() as server,
        TcpProxy("127.0.0.1", server.port) as proxy,
        Broker(server, proxy) as made,
    ):
        yield made


@pytest.fixture
def system(victim_database: Database, broker: Broker, tmp_path: Path) -> Iterator[System]:
    sink = {"type": "rabbitmq", "url": broker.url, "timeout_s": 20}
    sink |= {"exchange": EXCHANGE, "declare": "none", "max_outstanding": 200}
    # A full queue may refuse a message as often as others are faster.
    retry = {"attempts": 1000, "first_s": 0.01, "max_s": 0.5, "max_elapsed_s": 3600}
    common: dict[str, Any] = {"max_open_s": 3, "retry": retry, "sink": sink}
    route = f"concat('{{}}', if(after.id % {LOST} = 0, '.lost', '.kept'))"
    pipelines = {
        "plain": {**common, "route": route.format("plain")},
        "lanes": {**common, "route": route.format("lanes"), "lanes": 2},
    }
    made = System(victim_database, tmp_path, pipelines, tables=TABLES)
    yield made
    made.kill()


def reasons(system: System, name: str) -> set[str]:
    """Why changes are parked."""
    with Listing(store_of(folder_of(system.data, name))) as listing:
        return {str(message["code"]) for message in control.export(listing, Selection())}


def strike(fault: str, system: System, broker: Broker, rng: random.Random) -> None:
    print(fault, flush=True)
    match fault:
        case "cut":
            broker.cut()
        case "broker":
            broker.restart()
        case _:
            kill(rng.choice(wait_for(lambda: victims(system.data)[fault])))


def run(system: System, broker: Broker, seed: int, faults: int) -> None:
    rng = random.Random(seed)
    system.start()
    names = list(system.pipelines)
    wait_for(lambda: all(system.state(name) == "running" for name in names), system.output)
    with Counting(system.database, seed, changes=3_000 * faults, keys=200):
        time.sleep(rng.uniform(2, 4))
        for number in range(faults):
            strike(FAULTS[number % len(FAULTS)], system, broker, rng)
            time.sleep(rng.uniform(2, 4))
    end = system.captured()
    everything = set(system.database.query(COMMITTED))

    def decided(name: str) -> bool:
        arrived = set(broker.arrived[name])
        return system.reached(name, end) and everything <= arrived | parked(system, name)

    def delivered(name: str) -> bool:
        return not parked(system, name) and everything <= set(broker.arrived[name])

    for name in names:
        wait_for(partial(decided, name), partial(system.progress, name))
        found, waiting = broker.arrived[name], parked(system, name)
        lost = {change for change in everything if change[0] % LOST == 0}
        repeated = len(found) - len(set(found))
        print(f"{name}: {len(everything)} changes, {len(waiting)} parked, {repeated} repeated")
        assert waiting == lost, reasons(system, name) - {"AMQP_312", "HELD"}
        assert in_order(found), name
    broker.bind_lost()
    for name in names:
        done = call("parked", "retry", name, "--all", "--config", system.folder / "tailrace.yml")
        assert done.returncode == 0, done.stderr
    for name in names:
        wait_for(partial(delivered, name), partial(system.progress, name))
        assert in_order(broker.arrived[name]), name
    assert system.stop() == 0


@pytest.mark.timeout(900)
def test_every_change_arrives_or_is_parked(system: System, broker: Broker, seed: int) -> None:
    run(system, broker, seed, CI_FAULTS)


@pytest.mark.soak
def test_every_change_arrives_or_is_parked_for_long(
    system: System, broker: Broker, seed: int
) -> None:
    run(system, broker, seed, soak.rounds(every=25))
