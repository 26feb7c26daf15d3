"""Pipelines to Redis: PostgreSQL, the log, Spark, and a server."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.testing import EmbeddedRedis
    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]


def sink(server: EmbeddedRedis, database: Database, **keys: Any) -> dict[str, Any]:
    """Positions of the test's own; names begin with the database."""
    name = "{database}:{table}"
    return {"type": "redis", "url": server.url, "name": name, "prefix": database.name, **keys}


def changes(client: redis.Redis, stream: str) -> list[Any]:
    return [json.loads(fields[b"payload"]) for _, fields in client.xrange(stream)]


@pytest.mark.parametrize(
    "stages", [{}, {"where": "id > 0"}, {"lanes": 3}], ids=["plain", "where", "lanes"]
)
def test_each_change_arrives_once_and_keys_in_order(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    redis_server: EmbeddedRedis,
    stages: dict[str, Any],
) -> None:
    database.execute("CREATE TABLE counters (id int PRIMARY KEY, n int)")
    captured = capture(database)
    delivery = deliver(captured, to=sink(redis_server, database), **stages)
    database.execute("INSERT INTO counters SELECT g, 0 FROM generate_series(1, 20) g")
    for _ in range(4):
        database.execute("UPDATE counters SET n = n + 1")
    captured.catch_up()
    assert delivery.run().events == 100
    seen: dict[int, list[int]] = defaultdict(list)
    with redis.Redis(port=redis_server.port) as client:
        for change in changes(client, f"{database.name}:counters"):
            seen[change["data"]["id"]].append(change["data"]["n"])
    assert seen == {key: [0, 1, 2, 3, 4] for key in range(1, 21)}


@pytest.mark.parametrize("routed", [False, True])
def test_the_latest_state_follows_the_table(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    redis_server: EmbeddedRedis,
    routed: bool,
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    captured = capture(database)
    route = f"concat(if(op = 'delete', 'DEL ', ''), '{database.name}:', table)"
    stages = {"route": route} if routed else {}
    delivery = deliver(captured, to=sink(redis_server, database, mode="string"), **stages)
    database.execute("INSERT INTO items SELECT g, g FROM generate_series(1, 5) g")
    database.execute("UPDATE items SET n = 0 WHERE id = 1")
    database.execute("DELETE FROM items WHERE id = 2")
    database.execute("UPDATE items SET id = 7 WHERE id = 3")
    captured.catch_up()
    assert delivery.run().state == "stopped"
    with redis.Redis(port=redis_server.port) as client:
        found = {
            key.decode(): json.loads(client.get(key) or b"")["data"]
            for key in client.keys(f"{database.name}:items:*")
        }
    name = f"{database.name}:items"
    assert found == {
        f"{name}:{key}": {"id": key, "n": n} for key, n in ((1, 0), (4, 4), (5, 5), (7, 3))
    }


def test_a_server_that_is_full_for_a_while(
    database: Database, capture: Capturing, deliver: Delivering, redis_server: EmbeddedRedis
) -> None:
    """GIVEN a full server WHEN it has space again THEN everything arrives once."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    delivery = deliver(captured, to=sink(redis_server, database, ids="position"))
    database.execute("INSERT INTO items SELECT generate_series(1, 5)")
    captured.catch_up()
    with redis.Redis(port=redis_server.port) as client:
        client.config_set("maxmemory", 1)
        try:
            with delivery.running() as progress:
                wait_for(lambda: progress.figures.state == "retrying", progress.current)
                assert progress.figures.code == "SINK_FULL"
                client.config_set("maxmemory", 0)
                wait_for(lambda: progress.figures.events == 5, progress.current)
        finally:
            client.config_set("maxmemory", 0)
        found = changes(client, f"{database.name}:items")
    assert [change["data"]["id"] for change in found] == [1, 2, 3, 4, 5]
