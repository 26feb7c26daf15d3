"""`tailrace pipeline try` shows what the sink receives, and sends one message on request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import nats.js.errors
import pytest
import yaml

from tailrace.testing import HttpReceiver, HttpResponse
from tests.command import call

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]


@pytest.fixture
def shop(database: Database, capture: Capturing) -> Captured:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric)")
    captured = capture(database)
    database.execute("INSERT INTO items SELECT g, 'näme ' || g FROM generate_series(1, 20) g")
    database.execute("INSERT INTO orders SELECT g, g * 1.5 FROM generate_series(1, 20) g")
    database.execute("DELETE FROM items WHERE id = 7")
    captured.catch_up()
    return captured


def settings(delivery: Delivery, folder: Path, **pipeline: Any) -> Path:
    path = folder / "tailrace.yml"
    document = {
        "log": {"path": str(delivery.log)},
        "pipelines": {"shop": {"sink": delivery.sink(), "encoding": "json", **pipeline}},
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    "stages",
    [
        {},
        {"shape": "plain", "lanes": 2},
        {
            "where": "after.id > 15 OR op = 'delete'",
            "select": ["id", "'x' AS mark"],
            "key": "id",
        },
    ],
    ids=["bridge", "lanes", "sql"],
)
def test_it_shows_what_the_sink_receives(
    shop: Captured, deliver: Delivering, tmp_path: Path, stages: dict[str, Any]
) -> None:
    delivery = deliver(shop, **stages)
    path = settings(delivery, tmp_path, **stages)
    done = call("pipeline", "try", "shop", "--limit", 1000, "--json", "-c", path)
    assert done.returncode == 0, done.stderr
    with pytest.raises(nats.js.errors.NotFoundError):
        delivery.received()
    delivery.run()
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    received = delivery.received()
    assert shown
    expected = [(each.subject, each.id, each.payload.decode()) for each in received]
    assert sorted(expected) == sorted(
        (each["destination"], each["id"], each["payload"]) for each in shown
    )
    last = call("pipeline", "try", "shop", "--limit", 3, "--json", "-c", path)
    assert [json.loads(line) for line in last.stdout.splitlines()] == shown[-3:]


def test_one_table_as_text(shop: Captured, deliver: Delivering, tmp_path: Path) -> None:
    path = settings(deliver(shop), tmp_path, tables=["public.*"], shape="plain")
    done = call("pipeline", "try", "shop", "--table", "orders", "--limit", 1, "-c", path)
    head, payload = done.stdout.splitlines()
    assert "orders" in head
    assert 'key: {"id":20}' in head or "key: 20" in head
    assert json.loads(payload)["after"] == {"id": 20, "total": "30.0"}


def test_a_table_that_the_pipeline_does_not_read(
    shop: Captured, deliver: Delivering, tmp_path: Path
) -> None:
    path = settings(deliver(shop), tmp_path, tables=["public.orders"])
    done = call("pipeline", "try", "shop", "--table", "items", "-c", path)
    assert done.returncode == 2
    assert "does not read the table public.items" in done.stderr
    assert "Its `tables` are: public.orders" in done.stderr
    done = call(
        "pipeline",
        "try",
        "shop",
        "--limit",
        1,
        "-c",
        settings(deliver(shop), tmp_path, tables=["public.nothing"]),
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "No change in the log reaches the sink" in done.stderr


def test_one_message_is_sent_on_request(
    shop: Captured, deliver: Delivering, tmp_path: Path
) -> None:
    """GIVEN a receiver that accepts, and one that refuses THEN the command says so."""
    status = [200]
    with HttpReceiver(lambda _: HttpResponse(status=status[0], body=b"why not")) as receiver:
        sink = {"type": "http", "url": receiver.url, "allow_private": True}
        path = settings(deliver(shop), tmp_path, sink=sink, shape="plain")
        command = ["pipeline", "try", "shop", "--table", "items", "--send", "-c", str(path)]
        sent = call(*command, "--limit", "2")
        assert sent.returncode == 0, sent.stderr
        assert "the sink has accepted it" in sent.stderr
        (request,) = receiver.requests
        assert json.loads(request.body)["op"] == "delete"
        assert f"id: {request.id}" in sent.stdout.splitlines()[2]
        status[0] = 422
        refused = call(*command)
    assert refused.returncode == 1
    assert "Not accepted: HTTP_422" in refused.stderr


def test_a_sink_that_keeps_positions_sends_no_single_message(
    shop: Captured, deliver: Delivering, tmp_path: Path
) -> None:
    path = settings(deliver(shop), tmp_path)
    refused = call("pipeline", "try", "shop", "--send", "-c", str(path))
    assert refused.returncode != 0
    assert "keeps what it has sent" in refused.stderr
