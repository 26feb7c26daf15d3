"""What hangs is reported to a webhook, and so is its recovery: the whole path, with Spark.

A hanging capture, a server process that does not send, and a server that does not answer are in
`tests/integration/watch`.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.testing.receiver import HttpReceiver, HttpResponse
from tests.faults.disk import mounted
from tests.faults.path import System, paused, victims
from tests.integration.watch.system import alerts, received, wait_for_message
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing.receiver import HttpRequest
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

TABLE = """
CREATE TABLE orders (id int PRIMARY KEY);
CREATE PUBLICATION tailrace FOR TABLE orders;
"""


class Sink(HttpReceiver):
    """A receiver of messages that can hang: it accepts requests and does not answer."""

    def __init__(self) -> None:
        super().__init__(self._wait)
        self.answering = threading.Event()
        self.answering.set()

    def _wait(self, _request: HttpRequest) -> HttpResponse:
        self.answering.wait()
        return HttpResponse()


@pytest.fixture
def hook() -> Iterator[HttpReceiver]:
    with HttpReceiver() as running:
        yield running


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as running:
        yield running
        running.answering.set()


def watched(
    database: Database, folder: Path, hook: HttpReceiver, sink: Sink, **more: Any
) -> System:
    """A pipeline into the sink, with a watchdog. Batches are short: while one is open, its task
    delivers by itself."""
    pipelines = {
        "orders": {
            "max_open_s": 2,
            "messages": ["*"],
            "sink": {"type": "http", "url": sink.url, "allow_private": True, "timeout_s": 300},
        }
    }
    given = alerts(hook, **more)
    return System(database, folder, pipelines, tables=TABLE, alerts=given)


def well(system: System) -> bool:
    """Whether heartbeats pass the pipeline."""
    found = {
        (each["check"], each["subject"]): each["state"]
        for each in system.health().get("checks", [])
    }
    return all(
        found.get((check, "orders")) == "healthy" for check in ("pipeline", "heartbeat", "progress")
    )


def test_a_jvm_and_a_sink_that_hang(
    victim_database: Database, tmp_path: Path, hook: HttpReceiver, sink: Sink
) -> None:
    """GIVEN a pipeline whose positions heartbeats move WHEN Spark's JVM is stopped by a signal, and
    later the sink accepts a message and does not answer THEN each time the webhook learns that the
    pipeline does not move, and that it does again. No heartbeat reaches the sink, though the
    pipeline selects all messages."""
    system = watched(victim_database, tmp_path, hook, sink)
    try:
        system.start()
        system.process.wait_until(lambda: well(system), "heartbeats to pass the pipeline")
        [jvm] = victims(system.data)["jvm"]
        with paused(jvm):
            first = wait_for_message(hook, "firing", check="progress", subject="orders")
        wait_for_message(hook, "resolved", alert=first["alert"])
        system.process.wait_until(lambda: well(system), "the pipeline to go on")

        sink.answering.clear()
        system.database.execute("INSERT INTO orders VALUES (1)")
        second = wait_for(lambda: _later(hook, first["alert"]), "the alert about the sink")
        sink.answering.set()
        wait_for_message(hook, "resolved", alert=second["alert"])
        assert system.stop() == 0, system.output()[-3000:]
        assert sink.requests
        assert {json.loads(each.body)["table"] for each in sink.requests} == {"orders"}
    finally:
        sink.answering.set()
        system.kill()


def _later(hook: HttpReceiver, before: str) -> dict[str, Any] | None:
    """The alert about the pipeline after another one."""
    for each in received(hook):
        about = (each["kind"], each["subject"]) == ("firing", "orders")
        if about and each["check"] in ("progress", "pipeline") and each["alert"] != before:
            return each
    return None


def test_a_full_disk(
    victim_database: Database, tmp_path: Path, hook: HttpReceiver, sink: Sink
) -> None:
    """GIVEN log, data and the watchdog's own files on one disk WHEN it is full THEN the webhook
    learns that, and with space again that everything has recovered; and the history has both."""
    with mounted(tmp_path / "data", "64m") as disk:
        system = watched(victim_database, tmp_path, hook, sink, disk_free_percent=10)
        try:
            system.start()
            system.process.wait_until(lambda: well(system), "heartbeats to pass the pipeline")
            disk.fill()

            def full() -> bool:
                disk.fill()
                told = [each for each in hook.requests if b'"kind": "firing"' in each.body]
                return any(b'"check": "disk"' in each.body for each in told)

            wait_for(full, "the alert about the disk")
            alert = wait_for_message(hook, "firing", check="disk", subject="data")
            assert alert["severity"] == "error"
            disk.empty()
            wait_for_message(hook, "resolved", alert=alert["alert"])
            system.process.wait_until(lambda: well(system), "the pipeline to go on")

            def noted() -> bool:
                changes = system.health()["history"]
                found = [each["state"] for each in changes if each["check"] == "disk"]
                return found[-1:] == ["healthy"] and {"error", "healthy"} <= set(found)

            wait_for(noted, "the history to have both")
            assert system.stop() == 0, system.output()[-3000:]
        finally:
            system.kill()
