"""Pipelines to a webhook: PostgreSQL, the log, Spark, and a receiver."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.capture.capture import Capture
from tailrace.parking import parking
from tailrace.parking.listing import Listing, Totals
from tailrace.parking.order import Orders
from tailrace.parking.selection import Selection
from tailrace.testing import HttpReceiver, HttpRequest, HttpResponse
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as made:
        yield made


def sink(receiver: HttpReceiver, **keys: Any) -> dict[str, Any]:
    return {
        "type": "http", "url": receiver.url, "path": "/{table}", "allow_private": True, **keys,
    }  # fmt: skip


def data(request: HttpRequest) -> Any:
    return json.loads(request.body)["data"]


STAGES = pytest.mark.parametrize(
    "stages", [{}, {"where": "id > 0"}, {"lanes": 3}], ids=["plain", "where", "lanes"]
)


@STAGES
def test_keys_arrive_in_order(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    receiver: HttpReceiver,
    stages: dict[str, Any],
) -> None:
    database.execute("CREATE TABLE counters (id int PRIMARY KEY, n int)")
    captured = capture(database)
    delivery = deliver(captured, to=sink(receiver), **stages)
    database.execute("INSERT INTO counters SELECT g, 0 FROM generate_series(1, 20) g")
    for _ in range(4):
        database.execute("UPDATE counters SET n = n + 1")
    captured.catch_up()
    assert delivery.run().events == 100
    seen: dict[int, list[int]] = defaultdict(list)
    for request in receiver.requests:
        assert (request.method, request.path) == ("POST", "/counters")
        seen[data(request)["id"]].append(data(request)["n"])
    assert seen == {key: [0, 1, 2, 3, 4] for key in range(1, 21)}
    assert len({request.id for request in receiver.requests}) == 100


@STAGES
def test_attempts_and_latencies_are_those_of_the_receiver(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    receiver: HttpReceiver,
    stages: dict[str, Any],
) -> None:
    """GIVEN a receiver that fails at the first attempt of some changes THEN every request is an
    attempt, and every change has a latency since its commit and since it came to the log."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    delivery = deliver(captured, to=sink(receiver), **stages)
    known: set[str] = set()

    def answer(request: HttpRequest) -> HttpResponse:
        failing = data(request)["id"] % 5 == 0 and request.id not in known
        known.add(request.id)
        return HttpResponse(status=503 if failing else 200)

    receiver.answer = answer
    for first in range(1, 61, 20):
        database.execute(f"INSERT INTO items SELECT generate_series({first}, {first + 19})")
    capturing = Capture(captured.config, stopping=lambda: False)
    capturing.run(until=captured.server_end())
    figures = delivery.run()
    assert figures.attempts == len(receiver.requests) == 72
    assert (figures.events, figures.failures) == (60, 12)
    assert figures.delivery_latency.count == figures.internal_latency.count == 60
    # A change is committed before it comes to the log.
    assert 0 < figures.internal_latency.seconds <= figures.delivery_latency.seconds
    taken = capturing.counts.figures
    assert taken.ingestion_latency.count == taken.transactions
    assert taken.received_bytes > taken.bytes


def test_a_receiver_that_fails_for_a_while(
    database: Database, capture: Capturing, deliver: Delivering, receiver: HttpReceiver
) -> None:
    """GIVEN a receiver that answers 503 WHEN it recovers THEN everything arrives."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    delivery = deliver(captured, to=sink(receiver))
    receiver.answer = lambda _: HttpResponse(status=503)
    database.execute("INSERT INTO items SELECT generate_series(1, 5)")
    captured.catch_up()
    with delivery.running() as progress:
        wait_for(lambda: progress.figures.state == "retrying", progress.current)
        assert progress.figures.code == "SINK_UNREACHABLE"
        assert "the receiver answers 503" in progress.figures.message
        refused = len(receiver.requests)
        # Before its retries are used up. The query ends without a receipt for the last attempts.
        assert 0 < progress.figures.failures == progress.figures.attempts <= refused
        receiver.answer = lambda _: HttpResponse()
        wait_for(lambda: progress.figures.events == 5, progress.current)
        assert progress.figures.attempts == progress.figures.failures + 5
    accepted = {data(request)["id"] for request in receiver.requests[refused:]}
    assert accepted == {1, 2, 3, 4, 5}


def test_a_change_that_is_refused_stops_the_pipeline(
    database: Database, capture: Capturing, deliver: Delivering, receiver: HttpReceiver
) -> None:
    """GIVEN `park: never` and a receiver that refuses a change THEN the pipeline stops and names
    the change; WHEN the receiver accepts it THEN it is sent, and nothing is sent twice."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    delivery = deliver(captured, to=sink(receiver), park="never")
    receiver.answer = lambda request: HttpResponse(status=422 if data(request)["id"] == 3 else 200)
    database.execute("INSERT INTO items SELECT generate_series(1, 5)")
    captured.catch_up()
    stopped = delivery.run()
    assert (stopped.state, stopped.code) == ("failed", "POISONED")
    refused = next(request.id for request in receiver.requests if data(request)["id"] == 3)
    assert refused in stopped.message
    assert "the receiver answers 422" in stopped.message
    receiver.answer = lambda _: HttpResponse()
    accepted = {data(request)["id"] for request in receiver.requests} - {3}
    before = len(receiver.requests)
    assert delivery.run().state == "stopped"
    again = [data(request)["id"] for request in receiver.requests[before:]]
    assert sorted(again) == sorted({1, 2, 3, 4, 5} - accepted)


@pytest.mark.parametrize("stages", [{}, {"lanes": 3}], ids=["one", "lanes"])
def test_a_group_of_two_tables_stays_in_order(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    receiver: HttpReceiver,
    stages: dict[str, Any],
) -> None:
    """GIVEN customers and their orders as groups WHEN a customer is refused THEN its orders wait,
    with an order that moves to another customer, and all arrive in order after a retry."""
    database.execute("CREATE TABLE customers (id int, customer int PRIMARY KEY)")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, customer int)")
    database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    captured = capture(database)
    delivery = deliver(captured, to=sink(receiver), group="customer", **stages)
    receiver.answer = lambda request: HttpResponse(status=200 if data(request)["id"] else 422)
    database.execute("INSERT INTO customers VALUES (0, 1), (1, 2), (2, 3)")
    database.execute("INSERT INTO orders VALUES (10, 1), (20, 2), (30, 3)")
    database.execute("UPDATE orders SET customer = 2 WHERE id = 10")
    database.execute("UPDATE orders SET id = 21 WHERE id = 20")
    captured.catch_up()
    delivery.run()

    def sent(count: int) -> list[tuple[str, int, int]]:
        found = [(each.path, data(each)) for each in receiver.requests[count:]]
        return [(path, row["id"], row["customer"]) for path, row in found]

    refused, arrived = ("/customers", 0, 1), sent(0)
    assert sorted(arrived) == sorted(
        [
            refused,
            ("/customers", 1, 2),
            ("/customers", 2, 3),
            ("/orders", 20, 2),
            ("/orders", 30, 3),
        ]
    )
    receiver.answer = lambda _: HttpResponse()
    folder = parking.folder_of(delivery.data, "test")
    Orders(folder / "orders").submit("retry", Selection())
    with delivery.running() as progress:
        wait_for(lambda: len(sent(len(arrived))) == 4, progress.current)
    assert sent(len(arrived)) == [
        refused,
        ("/orders", 10, 1),
        ("/orders", 10, 2),
        ("/orders", 21, 2),
    ]


@pytest.mark.parametrize(
    "stages", [{}, {"where": "id > 0"}, {"lanes": 3}], ids=["plain", "where", "lanes"]
)
def test_a_refused_change_is_parked_and_retried(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    receiver: HttpReceiver,
    stages: dict[str, Any],
) -> None:
    """GIVEN a receiver that refuses a change THEN its key waits and others do not; WHEN it is
    retried THEN the key arrives in order, and its later changes follow."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    captured = capture(database)
    delivery = deliver(captured, to=sink(receiver), **stages)

    def change(n: int) -> None:
        database.execute(f"UPDATE items SET n = {n}")
        captured.catch_up()

    def sent(key: int) -> list[int]:
        found = map(data, receiver.requests)
        return [each["n"] for each in found if each["id"] == key]

    refused = {"id": 3, "n": 1}
    receiver.answer = lambda request: HttpResponse(status=422 if data(request) == refused else 200)
    database.execute("INSERT INTO items SELECT g, 0 FROM generate_series(1, 5) g")
    change(1)
    folder = parking.folder_of(delivery.data, "test")
    with delivery.running() as progress:
        wait_for(lambda: sent(5) == [0, 1], progress.current)
        change(2)
        wait_for(lambda: sent(5) == [0, 1, 2], progress.current)
        assert sent(3) == [0, 1]
        wait_for(lambda: progress.figures.parked == 2, progress.current)
        receiver.answer = lambda _: HttpResponse()
        Orders(folder / "orders").submit("retry", Selection(code="HTTP_422"))
        wait_for(lambda: sent(3) == [0, 1, 1, 2], progress.current)
        change(3)
        wait_for(lambda: progress.figures.events == 20, progress.current)
    assert sent(3) == [0, 1, 1, 2, 3]
    with Listing(parking.store_of(folder)) as listing:
        assert listing.totals() == Totals()
        [order] = listing.orders()
    assert (order.matched, order.delivered, order.failed) == (2, 2, 0)


@pytest.mark.parametrize("stages", [{}, {"lanes": 2}], ids=["plain", "lanes"])
def test_a_row_that_is_too_large_for_the_jvm_is_parked(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    receiver: HttpReceiver,
    stages: dict[str, Any],
) -> None:
    """GIVEN a row of 70 MiB WHEN it is delivered THEN it is parked whole, and others are sent."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY, content text)")
    captured = capture(database)
    delivery = deliver(captured, to=sink(receiver), **stages)
    size = 70 << 20
    content = f"repeat('x', CASE g WHEN 2 THEN {size} ELSE 1 END)"
    database.execute(f"INSERT INTO items SELECT g, {content} FROM generate_series(1, 3) g")
    captured.catch_up()
    done = delivery.run()
    assert sorted(data(request)["id"] for request in receiver.requests) == [1, 3], done
    assert (done.events, done.parked) == (2, 1)
