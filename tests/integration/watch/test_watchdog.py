"""The watchdog beside a real capture and a real PostgreSQL: what hangs is reported."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tailrace.log.changes import read_changes
from tailrace.log.reader import Log
from tailrace.testing import TcpProxy
from tailrace.testing.receiver import HttpReceiver, HttpResponse
from tests.command import Service, call
from tests.faults.path import paused
from tests.integration.watch.system import Watched, alerts, received, wait_for_message
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as running:
        yield running


@pytest.fixture
def watched(tmp_path: Path, database: Database, receiver: HttpReceiver) -> Iterator[Watched]:
    system = Watched(tmp_path, database, alerts(receiver))
    system.prepare()
    yield system
    system.kill()
    wait_for(lambda: not system.reader(), "the slot to be free")


def test_heartbeats_come_back_through_the_log(watched: Watched, receiver: HttpReceiver) -> None:
    """GIVEN a run with alerts WHEN nothing else happens THEN heartbeats pass the log, all checks
    are healthy, and the command, HTTP and the metrics say so."""
    watched.start()
    watched.wait_until(watched.well, "heartbeats to come back")
    log = Log.open(watched.folder / "data" / "log")
    assert "tailrace" in {change.prefix for change in read_changes(log, log.earliest())}
    expected = {
        "source", "slot", "publication", "replication", "wal_kept", "progress", "heartbeat",
        "process", "hang", "files", "log", "log_size", "disk", "memory", "ingested",
    }  # fmt: skip
    found: dict[str, Any] = {}

    def complete() -> bool:
        found.update(watched.get("/health/checks"))
        return {each["check"] for each in found["checks"]} >= expected

    wait_for(complete, lambda: found)
    assert found["watchdog"] == "watching"
    assert found["alerts"] == []
    assert [each for each in found["history"] if each["check"] == "source"]
    result = call("health", "-c", watched.file, "--json")
    assert {each["check"] for each in json.loads(result.stdout)["checks"]} >= {"source", "slot"}
    metrics = call("alert", "ls", "-c", watched.file)
    assert metrics.stdout == "no alerts\n"
    assert watched.stop() == 0
    assert received(receiver) == []


def test_postgresql_that_stops_sending(watched: Watched, receiver: HttpReceiver) -> None:
    """GIVEN capture that streams WHEN the server process that sends hangs THEN the webhook learns
    that capture does not move, and that it does again."""
    watched.start()
    watched.wait_until(watched.well, "heartbeats to come back")
    reader = wait_for(watched.reader, "a session to read the slot")
    assert reader is not None
    with paused(reader):
        alert = wait_for_message(receiver, "firing", check="progress", subject="")
    assert alert["severity"] == "error"
    recovery = wait_for_message(receiver, "resolved", check="progress", subject="")
    assert recovery["alert"] == alert["alert"]
    assert recovery["id"] != alert["id"]


def test_a_server_that_does_not_answer(
    tmp_path: Path, database: Database, receiver: HttpReceiver
) -> None:
    """GIVEN a network that swallows everything WHEN the watchdog asks THEN it says that the source
    does not answer, and tells of the recovery."""
    with TcpProxy("127.0.0.1", database.server.port) as proxy:
        dsn = f"{database.dsn} port={proxy.port}"
        watched = Watched(tmp_path, database, alerts(receiver), dsn=dsn)
        watched.prepare()
        try:
            watched.start()
            watched.wait_until(watched.well, "heartbeats to come back")
            proxy.black_hole()
            wait_for_message(receiver, "firing", check="source")
            proxy.heal()
            wait_for_message(receiver, "resolved", check="source")
        finally:
            watched.kill()


def test_a_process_that_hangs(watched: Watched, receiver: HttpReceiver) -> None:
    """GIVEN a capture that streams WHEN it is stopped by a signal THEN the webhook learns that it
    does not report, and that it does again."""
    watched.start()
    watched.wait_until(watched.well, "heartbeats to come back")
    with paused(watched.process_pid("capture")):
        wait_for_message(receiver, "firing", check="hang", subject="capture")
    wait_for_message(receiver, "resolved", check="hang", subject="capture")


def test_the_last_words_of_a_run_are_delivered(watched: Watched, receiver: HttpReceiver) -> None:
    """GIVEN no slot WHEN the run ends with a final state THEN the webhook learns it."""
    watched.database.query("SELECT pg_drop_replication_slot(%s)", watched.slot)
    assert watched.start().wait() == 22
    alert = wait_for_message(receiver, "firing", check="process", subject="capture")
    assert alert["summary"] == "REFUSED: a final state"


def test_what_is_not_delivered_survives_a_restart(watched: Watched, receiver: HttpReceiver) -> None:
    """GIVEN a receiver that refuses WHEN the watchdog is killed THEN the next one delivers the same
    message, and does not send the alert anew."""
    receiver.answer = lambda _: HttpResponse(status=503)
    watched.start()
    watched.wait_until(watched.well, "heartbeats to come back")
    with paused(watched.process_pid("capture")):
        wait_for(
            lambda: "hang capture" in call("alert", "ls", "-c", watched.file).stdout,
            "the alert to fire",
        )
        wait_for(lambda: receiver.requests, "an attempt to deliver")
        first = watched.process_pid("watch")
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: watched.process_pid("watch") not in (0, first), "another watchdog")
        receiver.answer = lambda _: HttpResponse()
        alert = wait_for_message(receiver, "firing", check="hang", subject="capture")
    recovery = wait_for_message(receiver, "resolved", check="hang", subject="capture")
    assert recovery["alert"] == alert["alert"]
    told: dict[str, set[str]] = {}
    for each in received(receiver):
        if each["kind"] == "firing":
            told.setdefault(each["check"] + each["subject"], set()).add(each["id"])
    assert {len(ids) for ids in told.values()} == {1}
    wait_for(
        lambda: watched.get("/health/checks")["channels"][0]["pending"] == 0, "nothing to be left"
    )


def test_the_role_of_capture_is_enough(
    tmp_path: Path, database: Database, receiver: HttpReceiver
) -> None:
    """GIVEN a role with LOGIN, REPLICATION and SELECT only THEN heartbeats come back."""
    role = f"{database.name}_reader"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    watched = Watched(
        tmp_path, database, alerts(receiver), dsn=f"{database.socket_dsn} user={role}"
    )
    watched.prepare()
    try:
        database.execute(f"GRANT SELECT ON t TO {role}")
        watched.start()
        watched.wait_until(watched.well, "heartbeats to come back")
    finally:
        watched.kill()
        wait_for(lambda: not watched.reader(), "the slot to be free")
        database.execute(f"DROP OWNED BY {role}")
        database.execute(f"DROP ROLE {role}")


def test_a_watchdog_of_its_own(tmp_path: Path, database: Database, receiver: HttpReceiver) -> None:
    """GIVEN a watchdog as a service of its own WHEN the run is killed THEN the webhook learns it,
    and that it runs again."""
    watched = Watched(tmp_path, database, alerts(receiver, supervised=False))
    watched.prepare()
    with Service("watch", "-c", watched.file, folder=tmp_path, file="watch.log") as watchdog:
        try:
            watched.start()
            watchdog.start()
            watched.wait_until(watched.well, "heartbeats to come back")
            watched.kill()
            alert = wait_for_message(receiver, "firing", check="process", subject="run")
            watched.start()
            wait_for_message(receiver, "resolved", alert=alert["alert"])
            assert watched.stop() == 0
            assert watchdog.stop() == 0
        finally:
            watched.kill()
    assert [each["check"] for each in received(receiver) if each["subject"] == "run"] == [
        "process",
        "process",
    ]


def test_a_watchdog_of_its_own_reads_what_is_applied(
    tmp_path: Path, database: Database, receiver: HttpReceiver
) -> None:
    """GIVEN a watchdog as a service of its own WHEN a channel is added and applied THEN it has that
    channel, and sends the next alert there."""
    settings = alerts(receiver, supervised=False)
    watched = Watched(tmp_path, database, settings)
    watched.prepare()
    with (
        HttpReceiver() as added,
        Service("watch", "-c", watched.file, folder=tmp_path, file="watch.log") as watchdog,
    ):
        try:
            watched.start()
            watchdog.start()
            watched.wait_until(watched.well, "heartbeats to come back")
            values = yaml.safe_load(watched.file.read_text())
            values["alerts"]["channels"]["added"] = {"webhook": {"url": added.url}}
            watched.file.write_text(yaml.safe_dump(values))
            applied = call("apply", "-c", watched.file, "--yes")
            assert applied.returncode == 0, applied.stderr

            def known() -> bool:
                channels = (watched.get("/health/checks") or {}).get("channels", [])
                return "added" in [each["name"] for each in channels]

            wait_for(known, "the watchdog to have the channel")
            watched.kill()
            wait_for_message(added, "firing", check="process", subject="run")
            assert watchdog.stop() == 0
        finally:
            watched.kill()


def test_a_heartbeat_arrives_before_the_next(
    tmp_path: Path, database: Database, receiver: HttpReceiver
) -> None:
    """GIVEN heartbeats that are far apart WHEN the source is idle THEN the first one counts as
    arrived without the second."""
    watched = Watched(tmp_path, database, alerts(receiver, heartbeat_s=3600))
    watched.prepare()
    try:
        watched.start()
        watched.wait_until(watched.well, "the heartbeat to come back")
        wait_for(lambda: _changes(watched) > 0, "the heartbeat to be captured")
        log = Log.open(tmp_path / "data" / "log")
        assert [each.prefix for each in read_changes(log, log.earliest())] == ["tailrace"]
        seconds = alerts(receiver)["stalled_s"] + 2
        holds(lambda: watched.state("heartbeat") != "error", seconds, "it has arrived")
    finally:
        watched.kill()
        wait_for(lambda: not watched.reader(), "the slot to be free")


def _changes(watched: Watched) -> int:
    return int(watched.get("/status")["capture"]["changes"])
