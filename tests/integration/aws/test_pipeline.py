"""Pipelines to services of AWS: PostgreSQL, the log, Spark, and a server."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.parking import parking
from tailrace.parking.listing import Listing
from tailrace.parking.selection import Selection
from tests.fix_aws import REGION
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_aws import Aws
    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]


def parked(delivery: Delivery) -> list[str]:
    """The codes of parked messages."""
    folder = parking.folder_of(delivery.data, "test")
    with Listing(parking.store_of(folder)) as listing:
        return [each.code for each in listing.page(Selection(), limit=10)]


@pytest.mark.parametrize(
    "stages", [{}, {"where": "id > 0"}, {"lanes": 3}], ids=["plain", "where", "lanes"]
)
def test_keys_arrive_in_order(
    database: Database, capture: Capturing, deliver: Delivering, aws: Aws, stages: dict[str, Any]
) -> None:
    stream = f"{database.name}-counters"
    aws.stream(stream, shards=2)
    database.execute("CREATE TABLE counters (id int PRIMARY KEY, n int)")
    captured = capture(database)
    to = {"type": "kinesis", "stream": "{database}-{table}", **aws.keys}
    delivery = deliver(captured, to=to, **stages)
    database.execute("INSERT INTO counters SELECT g, 0 FROM generate_series(1, 20) g")
    for _ in range(4):
        database.execute("UPDATE counters SET n = n + 1")
    captured.catch_up()
    assert delivery.run().events == 100
    seen: dict[str, list[int]] = defaultdict(list)
    for record in aws.records(stream):
        row = json.loads(record["Data"])["data"]
        assert record["PartitionKey"] == str(row["id"])
        seen[record["PartitionKey"]].append(row["n"])
    assert seen == {str(key): [0, 1, 2, 3, 4] for key in range(1, 21)}


def test_a_message_that_is_too_large_is_parked(
    database: Database, capture: Capturing, deliver: Delivering, aws: Aws
) -> None:
    """GIVEN a FIFO queue WHEN a row is larger than SQS takes THEN it is parked, with what follows
    of its key, and all others arrive."""
    queue = f"{database.name}-notes.fifo"
    aws.queue(queue)
    database.execute("CREATE TABLE notes (id int PRIMARY KEY, note text)")
    captured = capture(database)
    to = {"type": "sqs", "queue": "{database}-{table}.fifo", **aws.keys}
    delivery = deliver(captured, to=to, max_open_s=1)
    database.execute("INSERT INTO notes VALUES (1, 'short'), (2, repeat('x', 1100000)), (3, 'é')")
    database.execute("UPDATE notes SET note = 'short' WHERE id IN (2, 3)")
    captured.catch_up()
    with delivery.running() as progress:
        wait_for(lambda: len(parked(delivery)) == 2, progress.current)
    found = [json.loads(each["Body"])["data"] for each in aws.received(queue)]
    assert [row["note"] for row in found if row["id"] == 3] == ["é", "short"]
    assert sorted(row["id"] for row in found) == [1, 3, 3]
    assert parked(delivery) == ["POISONED", "HELD"]


def test_events_of_a_binary_encoding_are_wrapped(
    database: Database, capture: Capturing, deliver: Delivering, aws: Aws
) -> None:
    aws.bus(database.name)
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    to = {"type": "eventbridge", "bus": "{database}", **aws.keys}
    delivery = deliver(captured, to=to, encoding="msgpack")
    database.execute("INSERT INTO items VALUES (1)")
    captured.catch_up()
    assert delivery.run().events == 1
    [event] = [json.loads(each["Body"]) for each in aws.received(database.name)]
    assert (event["region"], event["detail-type"]) == (REGION, "public.items.insert")
    assert b"items" in base64.b64decode(event["detail"]["payload"])
