"""Pipelines to RabbitMQ: PostgreSQL, the log, Spark, and a broker."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.parking import parking
from tailrace.parking.listing import Listing, Totals
from tailrace.parking.order import Orders
from tailrace.parking.selection import Selection
from tests.integration.rabbitmq.bench import Bench
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.testing import EmbeddedRabbitMQ
    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]


@pytest.fixture
def bench(rabbitmq_server: EmbeddedRabbitMQ) -> Bench:
    return Bench(rabbitmq_server)


def sink(bench: Bench, **keys: Any) -> dict[str, Any]:
    given = {"type": "rabbitmq", "url": bench.server.url, "exchange": bench.name}
    return given | {"routing_key": "{table}", "queue_type": "classic"} | keys


def rows(bench: Bench, queue: str) -> list[Any]:
    """What has arrived in a queue."""
    found = []
    with bench.channel() as channel:
        while (message := channel.basic_get(f"{bench.name}.{queue}", no_ack=True)) is not None:
            found.append(json.loads(message.body)["data"])
    return found


def totals(folder: Path) -> Totals:
    """What is parked."""
    with Listing(parking.store_of(folder)) as listing:
        return listing.totals()


@pytest.mark.parametrize(
    "stages", [{}, {"where": "id > 0"}, {"lanes": 3}], ids=["plain", "where", "lanes"]
)
def test_keys_arrive_in_order(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    bench: Bench,
    stages: dict[str, Any],
) -> None:
    database.execute("CREATE TABLE counters (id int PRIMARY KEY, n int)")
    captured = capture(database)
    delivery = deliver(captured, to=sink(bench), **stages)
    database.execute("INSERT INTO counters SELECT g, 0 FROM generate_series(1, 20) g")
    for _ in range(4):
        database.execute("UPDATE counters SET n = n + 1")
    captured.catch_up()
    assert delivery.run().events == 100
    seen: dict[int, list[int]] = defaultdict(list)
    for row in rows(bench, "counters"):
        seen[row["id"]].append(row["n"])
    assert seen == {key: [0, 1, 2, 3, 4] for key in range(1, 21)}


def test_a_route_names_exchange_and_routing_key(
    database: Database, capture: Capturing, deliver: Delivering, bench: Bench
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    route = f"if(id < 3, 'small', '{bench.name}/large')"
    delivery = deliver(captured, to=sink(bench), route=route)
    database.execute("INSERT INTO items SELECT generate_series(1, 5)")
    captured.catch_up()
    assert delivery.run().events == 5
    found = {name: [row["id"] for row in rows(bench, name)] for name in ("small", "large")}
    assert found == {"small": [1, 2], "large": [3, 4, 5]}


@pytest.mark.long
def test_a_returned_change_is_parked_and_retried(
    database: Database, capture: Capturing, deliver: Delivering, bench: Bench
) -> None:
    """GIVEN no queue for one table THEN its changes are parked and others are not; WHEN a queue is
    bound and they are retried THEN they arrive in order."""
    bench.declare("orders")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    captured = capture(database)
    delivery = deliver(captured, to=sink(bench, declare="none"))
    database.execute("INSERT INTO items VALUES (1, 0)")
    database.execute("INSERT INTO orders VALUES (1)")
    database.execute("UPDATE items SET n = 1")
    captured.catch_up()
    folder = parking.folder_of(delivery.data, "test")
    with delivery.running() as progress:
        wait_for(lambda: totals(folder).messages == 2, progress.current)
        bench.declare("items")
        Orders(folder / "orders").submit("retry", Selection(code="AMQP_312"))
        wait_for(lambda: totals(folder) == Totals(), progress.current)
    assert [row["n"] for row in rows(bench, "items")] == [0, 1]
    assert rows(bench, "orders") == [{"id": 1}]
