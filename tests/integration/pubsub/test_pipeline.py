"""Pipelines to Pub/Sub: PostgreSQL, the log, Spark, and Google's test server."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.parking import parking
from tailrace.parking.listing import Listing
from tailrace.parking.selection import Selection
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database
    from tests.pubsub import Topics

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]


@pytest.mark.parametrize(
    "stages", [{}, {"where": "id > 0"}, {"lanes": 3}], ids=["plain", "where", "lanes"]
)
def test_keys_arrive_in_order(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    topics: Topics,
    stages: dict[str, Any],
) -> None:
    topic = topics.create(topics.unused("counters"))
    database.execute("CREATE TABLE counters (id int PRIMARY KEY, n int)")
    captured = capture(database)
    delivery = deliver(captured, to={"type": "pubsub", "topic": topic, **topics.keys}, **stages)
    database.execute("INSERT INTO counters SELECT g, 0 FROM generate_series(1, 20) g")
    for _ in range(4):
        database.execute("UPDATE counters SET n = n + 1")
    captured.catch_up()
    assert delivery.run().events == 100
    seen: dict[str, list[int]] = defaultdict(list)
    for message in topics.received(topic):
        row = json.loads(message.data)["data"]
        assert message.ordering_key == message.attributes["key"] == str(row["id"])
        seen[message.ordering_key].append(row["n"])
    assert seen == {str(key): [0, 1, 2, 3, 4] for key in range(1, 21)}


def test_a_message_that_is_too_large_is_parked(
    database: Database, capture: Capturing, deliver: Delivering, topics: Topics
) -> None:
    """GIVEN a limit WHEN a row is larger THEN it is parked, with what follows of its key, and all
    others arrive."""
    topic = topics.create(topics.unused("notes"))
    database.execute("CREATE TABLE notes (id int PRIMARY KEY, note text)")
    captured = capture(database)
    to = {"type": "pubsub", "topic": topic, "max_message_bytes": 4000, **topics.keys}
    delivery = deliver(captured, to=to, max_open_s=1)
    database.execute("INSERT INTO notes VALUES (1, 'short'), (2, repeat('x', 4000)), (3, 'é')")
    database.execute("UPDATE notes SET note = 'short' WHERE id IN (2, 3)")
    captured.catch_up()

    def parked() -> list[str]:
        with Listing(parking.store_of(parking.folder_of(delivery.data, "test"))) as listing:
            return [each.code for each in listing.page(Selection(), limit=10)]

    with delivery.running() as progress:
        wait_for(lambda: len(parked()) == 2, progress.current)
    found = [json.loads(each.data)["data"] for each in topics.received(topic)]
    assert [row["note"] for row in found if row["id"] == 3] == ["é", "short"]
    assert sorted(row["id"] for row in found) == [1, 3, 3]
    assert parked() == ["POISONED", "HELD"]
