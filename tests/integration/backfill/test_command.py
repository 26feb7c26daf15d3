"""`tailrace backfill` and the HTTP API against a real `tailrace run`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from tailrace.testing.process import free_port
from tests import http
from tests.command import Service, run
from tests.jetstream import received
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long


class Shop(Service):
    """A `tailrace run`, and commands on its data folder."""

    def __init__(self, folder: Path, database: Database, url: str) -> None:
        self.nats = url
        self.stream = f"S{database.name}"
        self.http = f"http://127.0.0.1:{free_port()}"
        sink = {
            "type": "nats",
            "url": url,
            "stream": {"name": self.stream, "subjects": [f"{database.name}.>"]},
            "subject": f"{database.name}.{{table}}.{{operation}}",
        }
        settings = {
            "source": {"dsn": database.socket_dsn, "slot": database.name},
            "log": {"path": str(folder / "log")},
            "data": str(folder / "data"),
            "http": {"port": int(self.http.rpartition(":")[2])},
            "pipelines": {"shop": {"start": "latest", "encoding": "json", "sink": sink}},
        }
        (folder / "tailrace.yml").write_text(yaml.safe_dump(settings))
        super().__init__("run", "tailrace.yml", folder=folder)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run(*words, folder=self.folder, timeout_s=LONG_S)

    def post(
        self, path: str, *, json: object = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        token = http.authorization(self.folder / "data")
        return http.post(self.http + path, json=json, headers={**token, **(headers or {})})

    def status(self) -> dict[str, Any]:
        try:
            status: dict[str, Any] = http.get(f"{self.http}/status").json()
        except httpx.TransportError:
            return {}
        return status


@pytest.fixture
def shop(tmp_path: Path, database: Database, nats_server: EmbeddedNats) -> Iterator[Shop]:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text);"
        "INSERT INTO orders SELECT g, 'v' || g FROM generate_series(1, 3000) g;"
        "CREATE PUBLICATION tailrace FOR ALL TABLES"
    )
    database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", database.name)
    with Shop(tmp_path, database, nats_server.url).start() as shop:
        yield shop


def test_by_command_and_over_http(shop: Shop) -> None:
    shop.wait_until(
        lambda: shop.status().get("pipelines", {}).get("shop", {}).get("state") == "running",
        "the pipeline runs",
    )

    done = shop.command("backfill", "shop", "orders", "--where", "id <= 2000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "complete: 2,000 rows" in done.stdout
    found = received(shop.nats, shop.stream)
    assert [message.json["data"]["id"] for message in found] == list(range(1, 2001))

    order = {"pipeline": "shop", "table": "orders", "rate": 5}
    assert http.post(f"{shop.http}/backfills", json=order).status_code == 401
    submitted = shop.post("/backfills", json=order)
    assert submitted.status_code == 202, submitted.text
    name = submitted.json()["id"]
    for refused, code in (
        ({"pipeline": "nope", "table": "orders"}, 400),
        ({"pipeline": "shop"}, 400),
        ({"pipeline": "shop", "table": "orders", "speed": 1}, 400),
        ({"pipeline": "shop", "table": "orders", "where": "pg_cancel_backend(1)"}, 400),
    ):
        assert shop.post("/backfills", json=refused).status_code == code
    assert shop.post(f"/backfills/{name}/stop").status_code == 404
    assert shop.post("/backfills/fill-0/pause").status_code == 404
    strange = shop.post(f"/backfills/{name}/cancel", headers={"origin": "http://elsewhere.example"})
    assert strange.status_code == 403
    assert shop.command("backfills", "cancel", name).returncode == 0
    wait_for(lambda: _states(shop)[name] == "cancelled", "the backfill is cancelled")
    listed = json.loads(shop.command("backfills", "--json").stdout)
    assert [each["state"] for each in listed] == ["complete", "cancelled"]
    assert "cancelled" in shop.command("backfills").stdout
    states = [("public.orders", "complete"), ("public.orders", "cancelled")]
    # The status is written once a second.
    wait_for(
        lambda: [(each["table"], each["state"]) for each in shop.status()["backfills"]] == states,
        "the status",
    )
    metrics = http.get(f"{shop.http}/metrics").text
    assert 'tailrace_backfill_rows{pipeline="shop",table="public.orders"} ' in metrics
    unknown = shop.command("backfill", "shop", "elsewhere.nothing")
    assert unknown.returncode != 0
    assert "elsewhere.nothing" in unknown.stdout + unknown.stderr
    assert shop.stop() == 0
    queued = shop.command("backfill", "shop", "orders")
    assert "No pipelines run" in queued.stdout


def _states(shop: Shop) -> dict[str, str]:
    return {each["id"]: each["state"] for each in http.get(f"{shop.http}/backfills").json()}
