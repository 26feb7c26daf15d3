"""The loop: what it remembers over a restart, and what it writes."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.config import Config
from tailrace.run.health import health_document
from tailrace.run.loaded import Loaded, loaded_file
from tailrace.state_file import StateFile
from tailrace.testing.receiver import HttpReceiver
from tailrace.watch import evaluation, store
from tailrace.watch.checks import machine
from tailrace.watch.files import FileWatch
from tailrace.watch.watchdog import Watchdog
from tests.unit.watch.test_store import ALERT, written
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks come ten times as often."""
    monkeypatch.setattr("tailrace.watch.watchdog.TICK_S", 0.1)
    monkeypatch.setattr("tailrace.watch.watchdog._SOURCE_EVERY_S", 0.2)


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as running:
        yield running


def config_of(tmp_path: Path, receiver: HttpReceiver, **alerts: Any) -> Config:
    (tmp_path / "status").mkdir(exist_ok=True)
    hook = {"webhook": {"url": f"{receiver.url}/s3cret"}}
    return Config.model_validate(
        {
            "source": {"dsn": "host=127.0.0.1 port=1 password=s3cret"},
            "data": tmp_path,
            "log": {"path": tmp_path / "log"},
            "alerts": {"for_s": 0, "disk_free_percent": 0, "channels": {"hook": hook}, **alerts},
        }
    )


def run_until(watchdog: Watchdog, condition: Any) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=watchdog.run, args=(stop,))
    thread.start()
    try:
        wait_for(condition)
    finally:
        stop.set()
        thread.join()


def kinds(receiver: HttpReceiver) -> list[tuple[str, str]]:
    documents = [json.loads(each.body) for each in receiver.requests]
    return [(each["kind"], each["check"]) for each in documents]


def test_a_source_that_is_away(tmp_path: Path, receiver: HttpReceiver) -> None:
    """GIVEN no PostgreSQL THEN the webhook learns it, the document shows it with its history, and
    neither of them nor the file has a secret."""
    config = config_of(tmp_path, receiver)
    run_until(Watchdog(config), lambda: ("firing", "source") in kinds(receiver))
    [message] = [each for each in receiver.requests if b'"source"' in each.body]
    assert b"s3cret" not in message.body
    document = health_document(config)
    assert document["watchdog"] == "stopped"
    [check] = [each for each in document["checks"] if each["check"] == "source"]
    assert check["state"] == "error"
    assert check["summary"].startswith("UNREACHABLE")
    assert [each["check"] for each in document["alerts"]] == ["source"]
    assert {"source", "files"} <= {each["check"] for each in document["history"]}
    assert "s3cret" not in json.dumps(document)
    written_files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written_files if b"s3cret" in path.read_bytes()]


def test_an_alert_of_an_earlier_run_is_not_sent_again(
    tmp_path: Path, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, receiver)
    run_until(Watchdog(config), lambda: ("firing", "source") in kinds(receiver))
    again = Watchdog(config)
    ticks: list[str] = []
    tick = Watchdog.tick

    def counted(self: Watchdog, state: str = "watching") -> None:
        tick(self, state)
        ticks.append(state)

    monkeypatch.setattr(Watchdog, "tick", counted)
    run_until(again, lambda: len(ticks) > 3)
    assert kinds(receiver).count(("firing", "source")) == 1


def test_an_alert_about_what_is_no_longer_checked_ends(
    tmp_path: Path, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN an alert for a disk check that no longer exists WHEN all checks have a result THEN it
    ends."""
    monkeypatch.setattr("tailrace.watch.watchdog._SETTLED_S", 0.0)
    config = config_of(tmp_path, receiver)
    gone = store.alert(replace(ALERT, key=type(ALERT.key)("certificate", "gone")))
    written(store.path_of(tmp_path), [gone])
    run_until(
        Watchdog(config, follower=True),
        lambda: not health_document(config)["alerts"] and health_document(config)["recovered"],
    )


@pytest.mark.parametrize(
    "settings", [{"alerts": {"heartbeat_s": 0}}, {"capture": {"messages": False}}]
)
def test_an_alert_about_heartbeats_that_are_turned_off_ends(
    tmp_path: Path, receiver: HttpReceiver, settings: dict[str, Any]
) -> None:
    """GIVEN an alert about a heartbeat of a pipeline WHEN there are no heartbeats any more THEN it
    ends, though the pipeline still exists."""
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    config = config_of(tmp_path, receiver, **settings.get("alerts", {}))
    document = config.model_dump() | {"pipelines": {"orders": {"sink": sink}}}
    config = Config.model_validate(document | {"capture": settings.get("capture", {})})
    late = store.alert(replace(ALERT, key=type(ALERT.key)("heartbeat", "orders")))
    written(store.path_of(tmp_path), [late])
    run_until(Watchdog(config), lambda: health_document(config)["recovered"])


@pytest.mark.parametrize("supervised", [True, False])
def test_settings_that_are_loaded_meanwhile(
    tmp_path: Path, receiver: HttpReceiver, supervised: bool
) -> None:
    """GIVEN a watchdog as a service of its own WHEN `tailrace run` loads other settings THEN it
    ends, to read them. A supervised one is restarted by its supervisor."""
    config = config_of(tmp_path, receiver, supervised=supervised)
    file = loaded_file(tmp_path)
    loaded = Loaded(file="x", at=datetime.now(UTC), settings={})
    file.write(loaded)
    watchdog, stop = Watchdog(config), threading.Event()
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(watchdog.run(stop)))
    thread.start()
    try:
        wait_for(lambda: ("firing", "source") in kinds(receiver))
        assert thread.is_alive()
        file.write(replace(loaded, at=loaded.at + timedelta(seconds=1)))
        if not supervised:
            wait_for(lambda: not thread.is_alive())
    finally:
        stop.set()
        thread.join()
    assert ended == [not supervised]


def test_a_damaged_history_is_set_aside(tmp_path: Path, receiver: HttpReceiver) -> None:
    path = store.path_of(tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"no database" * 1000)
    config = config_of(tmp_path, receiver)
    run_until(Watchdog(config), lambda: ("firing", "source") in kinds(receiver))
    assert path.with_suffix(".corrupt").exists()
    assert health_document(config)["history"]


def test_a_file_that_is_no_history(tmp_path: Path, receiver: HttpReceiver) -> None:
    """GIVEN a history that cannot be read THEN the document says so, with the present states."""
    path = store.path_of(tmp_path)
    path.mkdir(parents=True)
    config = config_of(tmp_path, receiver)
    run_until(Watchdog(config), lambda: ("firing", "source") in kinds(receiver))
    document = health_document(config)
    assert document["history_error"] == "STORAGE"
    assert document["checks"]


def test_without_a_watchdog_the_document_says_so(tmp_path: Path, receiver: HttpReceiver) -> None:
    document = health_document(config_of(tmp_path, receiver))
    assert (document["state"], document["watchdog"], document["checks"]) == ("down", "down", [])


def test_it_listens_nowhere(
    tmp_path: Path, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a watchdog at work THEN it opens no socket that listens."""
    listening: list[object] = []

    class Socket(socket.socket):
        def listen(self, *_: object) -> None:
            listening.append(self)

    monkeypatch.setattr(socket, "socket", Socket)
    config = config_of(tmp_path, receiver)
    run_until(Watchdog(config), lambda: ("firing", "source") in kinds(receiver))
    # Not raised in `listen`: threads of the watchdog survive errors.
    assert not listening


def test_a_disk_that_hangs(
    tmp_path: Path, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a disk that answers neither reads nor writes THEN the webhook receives that, and the
    watchdog can be stopped."""
    answers, hangs = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        hangs.set()
        answers.wait()

    monkeypatch.setattr(FileWatch, "ask", hang)
    monkeypatch.setattr(StateFile, "write", hang)
    watchdog = Watchdog(config_of(tmp_path, receiver), follower=True)

    def told() -> bool:
        hangs.wait()
        for module in (evaluation, machine):
            monkeypatch.setattr(module, "UNREAD_S", 0.0)
        return ("firing", "files") in kinds(receiver)

    try:
        run_until(watchdog, told)
    finally:
        answers.set()
