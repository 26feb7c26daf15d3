"""Pipelines into OpenSearch: indices follow tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tailrace.testing import HttpResponse
from tests.integration.search.bench import Gateway
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.testing import EmbeddedOpenSearch, HttpRequest
    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[[Database], Captured]
    Delivering = Callable[..., Delivery]

_CLOSED = HttpResponse(status=0)
WORDS = "SELECT string_agg(md5(g::text || random()), '') FROM generate_series(1, 400) g"


def sink(url: str, database: Database, **keys: Any) -> dict[str, Any]:
    return {"type": "opensearch", "url": url, "index": f"{database.name}-{{table}}", **keys}


def rows_of(database: Database, table: str) -> dict[str, Any]:
    """The rows as their documents should be."""
    found = database.query(f'SELECT id::text, row_to_json(t)::text FROM "{table}" t')
    return {key: json.loads(row) for key, row in found}


def test_documents_follow_a_table(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    opensearch_server: EmbeddedOpenSearch,
) -> None:
    """GIVEN a table with large values WHEN its rows are written, moved and deleted THEN the
    documents are its rows, with the large values that updates did not modify."""
    database.execute('CREATE TABLE "Items" (id int PRIMARY KEY, n int, body text, tags text[])')
    captured = capture(database)
    delivery = deliver(captured, shape="row", to=sink(opensearch_server.url, database))
    write = 'INSERT INTO "Items" SELECT g, g, (' + WORDS + "), '{a}' FROM generate_series(1, 9) g"
    database.execute(write)
    database.execute('UPDATE "Items" SET n = 0 WHERE id IN (1, 2, 3)')
    database.execute('UPDATE "Items" SET id = id + 100 WHERE id IN (3, 4)')
    database.execute('DELETE FROM "Items" WHERE id IN (2, 5)')
    database.execute("INSERT INTO \"Items\" VALUES (2, 7, 'again', NULL)")
    captured.catch_up()
    assert delivery.run().state == "stopped"
    index = f"{database.name}-~49tems"
    assert opensearch_server.documents(index) == rows_of(database, "Items")
    database.execute('UPDATE "Items" SET n = n + 1')
    captured.catch_up()
    assert delivery.run().state == "stopped"
    assert opensearch_server.documents(index) == rows_of(database, "Items")


def test_an_outage_and_lanes(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    opensearch_server: EmbeddedOpenSearch,
) -> None:
    """GIVEN a cluster that is down for a while WHEN it is back THEN every row is there."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    captured = capture(database)

    class Closing(Gateway):
        closed = True

        def instead(self, request: HttpRequest) -> HttpResponse | None:
            return _CLOSED if self.closed else None

    with Closing(opensearch_server) as gateway:
        to = sink(gateway.url, database)
        retry = {"attempts": 2, "first_s": 0.01, "max_s": 0.01}
        delivery = deliver(captured, shape="row", lanes=2, retry=retry, to=to)
        database.execute("INSERT INTO items SELECT g, g FROM generate_series(1, 500) g")
        database.execute("UPDATE items SET n = n + 1 WHERE id % 2 = 0")
        database.execute("DELETE FROM items WHERE id % 5 = 0")
        captured.catch_up()
        with delivery.running() as progress:
            wait_for(lambda: progress.figures.state == "retrying", progress.current)
            assert progress.figures.code == "SINK_UNREACHABLE"
            gateway.closed = False
            wait_for(lambda: progress.figures.events == 850, progress.current)
    found = opensearch_server.documents(f"{database.name}-items")
    assert found == rows_of(database, "items")
