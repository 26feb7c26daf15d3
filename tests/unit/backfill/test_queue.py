"""Backfills are submitted once, change their state on request, and are listed."""

from __future__ import annotations

import getpass
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.backfill import queue
from tailrace.backfill.order import Order, Record
from tailrace.config import Config
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.backfill.order import DesiredState


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return settings(tmp_path)


def settings(data: Path, **pipeline: Any) -> Config:
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    shop = {"sink": sink, "tables": ["public.*"], **pipeline}
    return Config.model_validate({"data": str(data), "pipelines": {"shop": shop}})


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """One millisecond passes per order, so that ids differ."""
    ticks = iter(range(1000))
    monkeypatch.setattr(
        "tailrace.backfill.queue.time.time_ns", lambda: (1_000_000 + next(ticks)) * 1_000_000
    )


def finish(config: Config, order: Order, state: str) -> None:
    Record(id=order.id, table=order.table, state=state).save(config.data / "backfills" / "shop")


def test_unfinished_orders_for_the_same_rows_are_shared(config: Config) -> None:
    first = queue.submit(config, "shop", "items", rate=5.0)
    assert first.id == "fill-1000000"
    assert queue.submit(config, "shop", "public.items") == first
    assert queue.submit(config, "shop", "items", where="id > 1") != first
    assert queue.submit(config, "shop", "others") != first
    again = queue.submit(config, "shop", "items", again="rows have changed")
    assert (again.reason, again == first) == ("rows have changed", False)


def test_what_operators_do_is_recorded(config: Config) -> None:
    """GIVEN orders THEN the audit file has each new one and each change, with the user."""
    order = queue.submit(config, "shop", "items", rate=5.0, user="ann")
    queue.submit(config, "shop", "items", user="ann")
    queue.set_desired_state(config, order.id, "pause", user="bob")
    queue.set_desired_state(config, order.id, "run")
    lines = (config.data / "audit.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [(each["action"], each["backfill"]) for each in entries] == [
        (f"backfill.{action}", order.id) for action in ("start", "pause", "resume")
    ]
    assert [each["user"] for each in entries] == ["ann", "bob", getpass.getuser()]
    assert (entries[0]["pipeline"], entries[0]["table"]) == ("shop", "public.items")


def test_orders_of_one_millisecond_are_all_kept(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.backfill.queue.time.time_ns", lambda: 10**12)
    names = [f"items{number}" for number in range(20)]
    with ThreadPoolExecutor(20) as threads:
        orders = list(threads.map(lambda name: queue.submit(config, "shop", name), names))
    assert len({order.id for order in orders}) == 20
    kept = Order.load(config.data / "backfills" / "shop")
    assert sorted(str(order.table) for order in kept) == sorted(f"public.{name}" for name in names)


@pytest.mark.parametrize("state", ["complete", "cancelled", "failed"])
def test_a_finished_order_is_not_shared(config: Config, state: str) -> None:
    first = queue.submit(config, "shop", "items")
    finish(config, first, state)
    assert queue.submit(config, "shop", "items") != first


def test_a_cancelled_order_is_not_shared(config: Config) -> None:
    first = queue.submit(config, "shop", "items")
    queue.set_desired_state(config, first.id, "cancel")
    assert queue.submit(config, "shop", "items") != first


@pytest.mark.parametrize(
    ("pipeline", "table", "rate", "error"),
    [
        ("other", "items", 0.0, "there is no pipeline 'other'"),
        ("shop", "private.items", 0.0, "private.items is not among the tables of pipeline shop"),
        ("shop", "a..b", 0.0, "invalid table name"),
        ("shop", "items", -1.0, "rate must be 0 or more rows per second, got -1.0"),
    ],
)
def test_invalid_orders_are_refused(
    config: Config, pipeline: str, table: str, rate: float, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        queue.submit(config, pipeline, table, rate=rate)
    assert queue.list_backfills(config) == []


@pytest.mark.parametrize("state", ["pause", "run", "cancel"])
def test_the_desired_state_is_stored(config: Config, state: DesiredState) -> None:
    order = queue.submit(config, "shop", "items", where="id > 1", rate=5.0)
    assert queue.set_desired_state(config, order.id, state).desired_state == state
    (row,) = queue.list_backfills(config)
    assert (row["desired_state"], row["where"], row["rate"]) == (state, "id > 1", 5.0)
    assert (row["pipeline"], row["table"], row["state"]) == ("shop", "public.items", "queued")


def test_finished_and_unknown_backfills_do_not_change(config: Config) -> None:
    order = queue.submit(config, "shop", "items")
    with pytest.raises(ConfigError, match="there is no backfill fill-10") as unknown:
        queue.set_desired_state(config, "fill-10", "pause")
    assert unknown.value.hint == f"Did you mean {order.id}?"
    with pytest.raises(ConfigError) as unknown:
        queue.set_desired_state(config, "x", "pause")
    assert unknown.value.hint == "List the backfills: tailrace backfills"
    finish(config, order, "complete")
    with pytest.raises(ConfigError, match="has already finished: its state is complete"):
        queue.set_desired_state(config, order.id, "run")


def test_configured_backfills_are_submitted_once(tmp_path: Path) -> None:
    tables = [{"table": "items"}, {"table": "items", "where": "id > 1", "rate": 5.0}]
    config = settings(tmp_path, backfill={"tables": tables})
    for _ in range(2):
        queue.submit_configured(config, "shop")
    rows = {row["where"]: (row["id"][:7], row["rate"]) for row in queue.list_backfills(config)}
    assert rows == {"": ("config-", 0.0), "id > 1": ("config-", 5.0)}
    assert len(queue.list_backfills(config)) == 2
