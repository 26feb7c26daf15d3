"""The backfill service runs orders one after another, and follows their desired state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from tailrace.backfill import queue
from tailrace.backfill.order import Order, Record
from tailrace.backfill.service import BackfillService, services
from tailrace.config import Config
from tailrace.errors import ConfigError, CorruptError, DiskFullError, PostgresUnreachableError
from tailrace.postgres.names import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ITEMS = TableName("public", "items")


class Bench:
    """A service whose filler is a function. The clock moves only while the service waits."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.now_s = 0.0
        self.waits: list[float] = []
        self.ran: list[str] = []
        self.service = BackfillService(
            config, "shop", clock=lambda: self.now_s, now=lambda: 1000.0 + self.now_s
        )
        self.fill: Callable[[Order, Record], bool] = lambda *_: True
        service: Any = self.service
        service._filler.run = self._fill
        service._joined.wait_for_writers = lambda *_: True
        service._stopping.wait = self.wait
        self.folder = config.data / "backfills" / "shop"

    def _fill(self, order: Order, record: Record) -> bool:
        self.ran.append(order.id)
        return self.fill(order, record)

    def wait(self, seconds: float = 0.0) -> bool:
        self.waits.append(seconds)
        self.now_s += seconds
        return self.service._stopping.is_set()

    def order(self, name: str, **fields: Any) -> Order:
        order = Order(id=name, table=ITEMS, asked_at=float(len(Order.load(self.folder))), **fields)
        order.save(self.folder)
        return order

    def work(self) -> None:
        """Run until no order is left."""
        wait = self.wait

        def stop(seconds: float) -> bool:
            if self.service._next() is None:
                self.service.stop()
            return wait(seconds)

        self.service._stopping.wait = stop  # type: ignore[method-assign, assignment]
        self.service._work()

    def states(self) -> dict[str, str]:
        return {name: record.state for name, record in Record.load(self.folder).items()}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    pipelines = {"shop": {"sink": sink}, "other": {"sink": sink}}
    return Bench(Config.model_validate({"data": str(tmp_path), "pipelines": pipelines}))


@pytest.fixture(autouse=True)
def events() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


def names(events: list[Any]) -> list[str]:
    return [event["event"] for event in events]


def test_one_service_per_pipeline(bench: Bench) -> None:
    assert len(services(bench.config)) == 2


def test_orders_run_oldest_first(bench: Bench, events: list[Any]) -> None:
    for name in ("b", "a", "c"):
        bench.order(name)
    bench.work()
    assert bench.ran == ["b", "a", "c"]
    assert bench.states() == {"a": "complete", "b": "complete", "c": "complete"}
    assert names(events) == ["backfill.complete"] * 3


def test_paused_and_cancelled_orders_do_not_run(bench: Bench, events: list[Any]) -> None:
    bench.order("a", desired_state="pause")
    bench.order("b", desired_state="cancel")
    bench.order("c")
    bench.work()
    assert bench.ran == ["c"]
    assert bench.states() == {"a": "paused", "b": "cancelled", "c": "complete"}
    # Each is logged once, however often the orders are read.
    assert sorted(names(events)) == ["backfill.cancelled", "backfill.complete", "backfill.paused"]


@pytest.mark.parametrize(
    ("state", "expected"), [("run", True), ("pause", False), ("cancel", False)]
)
def test_waiting_ends_when_the_desired_state_changes(
    bench: Bench, state: Any, expected: bool
) -> None:
    order = bench.order("a")
    bench.service._current = order.id
    assert bench.service._wait(0.0)
    queue.set_desired_state(bench.config, order.id, state)
    assert bench.service._wait(10.0) is expected
    assert bench.now_s == (10.0 if expected else 0.25)


def test_an_order_that_was_removed_stops(bench: Bench) -> None:
    bench.service._current = "missing"
    assert not bench.service._wait(0.0)


def test_transient_errors_are_retried_with_back_off(bench: Bench, events: list[Any]) -> None:
    failures = iter([1, 1, 2, 2])
    states: list[str] = []

    def fill(_order: Order, record: Record) -> bool:
        states.append(record.state)
        page = next(failures, None)
        if page is None:
            return True
        record.number = page
        raise PostgresUnreachableError("no answer")

    bench.fill = fill
    order = bench.order("a")
    bench.service._current = order.id
    record = bench.service._records.setdefault("a", Record(id="a", table=ITEMS))
    bench.service._fill(order, record)
    assert states == ["queued", *["retrying"] * 4]
    assert (record.state, record.error) == ("complete", "")
    retries = [event["retry_in_s"] for event in events if event["event"] == "backfill.retrying"]
    # The second page is progress: the back-off starts again.
    for retry_s, nominal in zip(retries, (1, 2, 1, 2), strict=True):
        assert 0.8 <= retry_s / nominal <= 1.2
    assert {event["code"] for event in events if "code" in event} == {"UNREACHABLE"}


def test_a_full_disk_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a data folder on a full disk WHEN a backfill fails THEN it is retried, though its state
    cannot be saved either."""
    saved: list[str] = []

    def save(record: Record, _folder: Path) -> None:
        saved.append(record.state)
        if len(bench.ran) < 3:
            raise DiskFullError("no space")

    def fill(_order: Order, _record: Record) -> bool:
        if len(bench.ran) < 3:
            raise DiskFullError("no space")
        return True

    monkeypatch.setattr(Record, "save", save)
    bench.fill = fill
    bench.order("a")
    bench.work()
    assert bench.ran == ["a"] * 3
    assert saved == ["retrying", "retrying", "complete"]


def test_other_errors_fail_the_backfill(bench: Bench, events: list[Any]) -> None:
    def fill(order: Order, _record: Record) -> bool:
        if order.id == "a":
            raise ConfigError("PostgreSQL refuses the condition", hint="Write another.")
        if order.id == "b":
            raise ValueError("a bug")
        return True

    bench.fill = fill
    for name in ("a", "b", "c"):
        bench.order(name)
    bench.work()
    assert bench.states() == {"a": "failed", "b": "failed", "c": "complete"}
    errors = {name: record.error for name, record in Record.load(bench.folder).items()}
    assert errors["a"] == "PostgreSQL refuses the condition"
    assert errors["b"] == "ValueError: a bug"
    failed = [event for event in events if event["event"] == "backfill.failed"]
    assert [event["code"] for event in failed] == ["BAD_CONFIG", "UNEXPECTED"]
    assert failed[0]["hint"] == "Write another."


@pytest.mark.parametrize("error", [None, DiskFullError("no space"), PermissionError()])
def test_an_idle_service_removes_delivered_pages(
    bench: Bench, events: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """An error does not end the service: it tries again."""
    tidy = Mock(side_effect=error)
    monkeypatch.setattr(bench.service._filler, "tidy", tidy)
    bench.work()
    tidy.assert_called_once_with()
    assert names(events) == ["backfill.spool_not_tidied"] * (error is not None)


@pytest.mark.parametrize("error", [None, CorruptError("page 7"), PermissionError()])
def test_pages_of_the_last_run_are_added_to_every_record(
    bench: Bench, events: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Also to a paused one: its pages are delivered and removed before it is resumed."""
    for name, state in (("1", "paused"), ("2", "complete"), ("3", "queued")):
        bench.order(name, desired_state="pause")
        Record(id=name, table=ITEMS, state=state).save(bench.folder)
    bench.service._records = Record.load(bench.folder)
    adopt = Mock(side_effect=error)
    monkeypatch.setattr(bench.service._filler, "adopt_pages", adopt)
    bench.work()
    assert [call.args[0].id for call in adopt.call_args_list] == ["1", "3"]
    assert names(events).count("backfill.pages_unreadable") == 2 * (error is not None)


def test_progress_lists_the_last_backfills(bench: Bench) -> None:
    for number in range(30):
        bench.order(f"{number:02}")
    bench.work()
    progress = bench.service.progress()
    assert [row.id for row in progress] == [f"{number:02}" for number in range(10, 30)]
    assert {row.pipeline for row in progress} == {"shop"}
