"""Pipelines to the sink `pull`: PostgreSQL, the log, Spark, and the store."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.sinks.pull.database import store_of
from tailrace.sinks.pull.queue import Queue, Rules
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]

RULES = Rules(max_out=10_000, max_deliveries=0, max_bytes=2**30)


def consume(data: Path, name: str) -> list[dict[str, Any]]:
    """What a consumer receives, who acknowledges everything."""
    found: list[dict[str, Any]] = []
    with Queue(store_of(data, name), RULES) as queue:
        while True:
            with queue.transaction():
                messages = queue.receive(9, token=1, now_ms=0, visibility_ms=1)
                queue.acknowledge([each.delivery for each in messages])
            if not messages:
                return found
            found += [json.loads(each.payload) for each in messages]


@pytest.mark.parametrize(
    "stages", [{}, {"where": "id > 0"}, {"lanes": 3}], ids=["plain", "where", "lanes"]
)
def test_each_change_arrives_once_and_keys_in_order(
    database: Database, capture: Capturing, deliver: Delivering, stages: dict[str, Any]
) -> None:
    database.execute("CREATE TABLE counters (id int PRIMARY KEY, n int)")
    captured = capture(database)
    delivery = deliver(captured, to={"type": "pull"}, **stages)
    database.execute("INSERT INTO counters SELECT g, 0 FROM generate_series(1, 20) g")
    for _ in range(4):
        database.execute("UPDATE counters SET n = n + 1")
    captured.catch_up()
    assert delivery.run().events == 100
    seen: dict[int, list[int]] = defaultdict(list)
    for change in consume(delivery.data, delivery.name):
        seen[change["data"]["id"]].append(change["data"]["n"])
    assert seen == {key: [0, 1, 2, 3, 4] for key in range(1, 21)}


def test_the_newest_state_of_each_row(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    captured = capture(database)
    delivery = deliver(captured, to={"type": "pull", "mode": "records"})
    database.execute("INSERT INTO items SELECT g, g FROM generate_series(1, 3) g")
    database.execute("UPDATE items SET n = 10 WHERE id = 1")
    database.execute("UPDATE items SET n = 11 WHERE id = 1")
    database.execute("DELETE FROM items WHERE id = 2")
    captured.catch_up()
    assert delivery.run().state == "stopped"
    found = [
        (each["operation"], each["data"]["id"]) for each in consume(delivery.data, delivery.name)
    ]
    assert found == [("UPDATE", 1), ("DELETE", 2), ("INSERT", 3)]


def test_a_store_that_is_full_for_a_while(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN a store for one message WHEN consumers acknowledge THEN the rest arrives once."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY, text text)")
    captured = capture(database)
    limits = {"max_bytes": 1000, "max_message_bytes": 1000, "batch_rows": 1, "timeout_s": 0}
    delivery = deliver(captured, to={"type": "pull", **limits})
    database.execute("INSERT INTO items SELECT g, repeat('x', 600) FROM generate_series(1, 3) g")
    captured.catch_up()
    found: list[int] = []
    with delivery.running() as progress:
        wait_for(lambda: progress.figures.code == "SINK_FULL", progress.current)

        def received() -> int:
            changes = consume(delivery.data, delivery.name)
            found.extend(each["data"]["id"] for each in changes)
            return len(found)

        wait_for(lambda: received() >= 3, progress.current)
        wait_for(lambda: progress.figures.state == "running", progress.current)
    assert found == [1, 2, 3]
