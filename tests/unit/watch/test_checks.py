"""The checks: facts in, states out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.position import Lsn, Position
from tailrace.watch.evaluation import causes, explained
from tailrace.watch.facts import (
    Beat,
    CertificateFact,
    DiskFact,
    Facts,
    FollowerFact,
    PipelineFact,
    ProcessFact,
    Report,
)
from tailrace.watch.motion import Motion
from tailrace.watch.result import Key, Result, error
from tests.unit.watch.making import (
    CAPTURE,
    FACTS,
    FILES,
    PIPELINE,
    SOURCE,
    SPARK,
    files,
    pipeline,
    results,
    source,
    state,
)

DAY_S = 86_400.0


def test_everything_is_healthy() -> None:
    facts = source(beats=(Beat(lsn=Lsn(990), at=990.0),))
    states = {str(key): str(result.state) for key, result in results(facts).items()}
    assert set(states.values()) == {"healthy"}
    assert len(states) == 26


def test_before_the_first_answer_nothing_is_wrong() -> None:
    facts = Facts(now=1.0, time=1.0, running_s=1.0)
    assert {str(each.state) for each in results(facts).values()} == {"initializing"}


@pytest.mark.parametrize(
    ("change", "check", "expected"),
    [
        ({"error": "no route", "code": "UNREACHABLE"}, "source", "error"),
        ({"slot_exists": False}, "slot", "error"),
        ({"slot_lost": "wal_removed"}, "slot", "error"),
        ({"slot_misfit": "it belongs to database x"}, "slot", "error"),
        ({"taken_over": "shop_e1"}, "slot", "error"),
        ({"publication_exists": False}, "publication", "error"),
        ({"tables": 0}, "publication", "warning"),
        ({"active": False}, "replication", "error"),
        ({"kept_wal_bytes": 2**29}, "wal_kept", "warning"),
        ({"kept_wal_bytes": 2**30}, "wal_kept", "error"),
        ({"kept_wal_bytes": 100, "safe_wal_bytes": 99}, "wal_kept", "error"),
        ({"kept_wal_bytes": 100, "safe_wal_bytes": 500}, "wal_kept", "healthy"),
    ],
)
def test_the_source(change: dict[str, Any], check: str, expected: str) -> None:
    assert state(source(**change), check) == expected


def test_a_server_that_does_not_answer_says_nothing_about_its_slot() -> None:
    """GIVEN a session that hangs WHEN the last answer is old THEN the source is an error, and the
    checks that need an answer keep what they said."""
    facts = replace(FACTS, source_age_s=16.0)
    assert state(facts, "source") == "error"
    assert state(facts, "slot") == state(facts, "replication") == ""


def test_a_follower_has_no_source() -> None:
    facts = replace(files(leader_connected=False), follower=True, source=None)
    assert state(facts, "source") == ""
    assert state(facts, "leader") == "error"
    assert state(replace(files(leader_connected=True), follower=True), "leader") == "healthy"


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (replace(CAPTURE, state="starting"), "initializing"),
        (replace(CAPTURE, state="reconnecting"), "error"),
        (replace(CAPTURE, state="stopped", alive=False), "paused"),
        (replace(CAPTURE, state="DISK_FULL", alive=False), "error"),
    ],
)
def test_replication(report: Report, expected: str) -> None:
    assert state(files(reports={"capture": report}), "replication") == expected


@pytest.mark.parametrize(
    ("beats", "expected"),
    [
        ((), "paused"),
        ((Beat(lsn=Lsn(999), at=0.0),), "healthy"),
        # Its commit record follows at once: that is the position of the log's end.
        ((Beat(lsn=Lsn(1000), at=0.0),), "healthy"),
        ((Beat(lsn=Lsn(1001), at=991.0),), "healthy"),
        ((Beat(lsn=Lsn(1000), at=0.0), Beat(lsn=Lsn(1001), at=990.0)), "warning"),
        ((Beat(lsn=Lsn(1001), at=940.0), Beat(lsn=Lsn(1002), at=999.0)), "error"),
    ],
)
def test_heartbeats_through_the_log(beats: tuple[Beat, ...], expected: str) -> None:
    assert state(source(beats=beats), "heartbeat") == expected


def test_heartbeats_past_a_pipeline() -> None:
    """Only those count that are in the log: the others are the log's matter. A pipeline that works
    on a backlog may be as far behind as its lag."""
    behind = replace(pipeline(position=Position(Lsn(900), 0)).files or FILES)
    beats = (Beat(lsn=Lsn(900), at=0.0), Beat(lsn=Lsn(950), at=930.0), Beat(lsn=Lsn(2000), at=1.0))
    facts = replace(source(beats=beats), files=behind)
    assert state(facts, "heartbeat", "orders") == "healthy"
    assert state(facts, "heartbeat", "orders", lag_s=70) == "error"
    facts = replace(source(beats=(beats[0], beats[2])), files=behind)
    assert state(facts, "heartbeat", "orders") == "healthy"


def test_no_heartbeats_on_request_and_on_a_standby() -> None:
    assert state(FACTS, "heartbeat", heartbeat_s=0) == ""
    assert state(source(standby=True), "heartbeat") == "paused"


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        (ProcessFact(name="capture", state="running"), "healthy"),
        (ProcessFact(name="capture", state="waiting"), "initializing"),
        (ProcessFact(name="capture", state="backing-off", code="DISK_FULL"), "error"),
        (ProcessFact(name="capture", state="failed", code="GAP"), "error"),
        (ProcessFact(name="capture", state="failed"), "error"),
    ],
)
def test_processes(process: ProcessFact, expected: str) -> None:
    assert state(files(processes=(process,)), "process", "capture") == expected


@pytest.mark.parametrize("code", ["GAP", "SLOT_LOST", "DIVERGED", "FENCED", "REFUSED"])
def test_final_states_do_not_wait(code: str) -> None:
    """GIVEN a run that ends because of a final state THEN it is an error at once."""
    process = ProcessFact(name="capture", state="failed", code=code)
    stopping = Report(pid=1, age_s=0, alive=True, state="stopping")
    found = results(files(processes=(process,), run=stopping))[Key("process", "capture")]
    assert (found.state, found.at_once) == ("error", True)
    assert code in found.summary


def test_the_last_word_of_a_process_counts() -> None:
    """GIVEN a process that has ended WHEN its supervisor has not reported it yet THEN its own file
    says why."""
    ended = replace(CAPTURE, state="SLOT_LOST", alive=False)
    assert state(files(reports={"capture": ended}), "process", "capture") == "error"
    earlier = replace(ended, pid=99)
    assert state(files(reports={"capture": earlier}), "process", "capture") == "healthy"


def test_what_is_being_stopped_is_paused() -> None:
    stopping = Report(pid=1, age_s=0, alive=True, state="stopping")
    facts = files(run=stopping, reports={"capture": replace(CAPTURE, age_s=100)})
    assert state(facts, "process", "capture") == "paused"
    assert state(facts, "pipeline", "orders") == "paused"
    assert state(facts, "hang", "capture") == "paused"


def test_capture_that_was_stopped_is_paused() -> None:
    """GIVEN a stop in order WHEN the source goes on writing THEN nothing about capture is wrong."""
    stopped = {"capture": replace(CAPTURE, state="stopped", alive=False)}
    run = Report(pid=1, age_s=100, alive=False, state="stopped", content={"stopped_by": "SIGTERM"})
    motion = Motion()
    for more in ({"reports": stopped}, {"run": run}):
        for now in (0.0, 100.0):
            ahead = source(wal_end=Lsn(9000), beats=(Beat(lsn=Lsn(2000), at=0.0),))
            facts = replace(ahead, now=now, files=replace(FILES, **more))
            found = results(facts, motion)
        checks = ("replication", "progress", "heartbeat")
        assert {str(found[Key(check)].state) for check in checks} == {"paused"}


def test_a_process_that_hung_and_ended() -> None:
    """GIVEN an alert about a process that hangs WHEN it is killed and does not come back THEN the
    alert ends, and explains nothing any more."""
    ended = files(reports={"capture": replace(CAPTURE, age_s=100, alive=False)})
    assert state(ended, "hang", "capture") == "paused"
    assert state(files(run=Report(pid=1, age_s=100, alive=False)), "hang", "run") == "paused"


@pytest.mark.parametrize("name", ["capture", "log"])
def test_pipelines_with_the_name_of_something_else(name: str) -> None:
    """GIVEN a pipeline that is called like a part of capture THEN both have results."""
    late = source(beats=(Beat(lsn=Lsn(2000), at=0.0),))
    facts = replace(late, files=replace(FILES, pipelines=(replace(PIPELINE, name=name),)))
    found = results(facts)
    assert found[Key("heartbeat")].state == "error"
    assert found[Key("heartbeat", name)].state == "healthy"
    assert Key("progress") in found
    assert Key("progress", name) in found


def test_a_status_file_that_is_not_renewed() -> None:
    late = files(reports={"capture": replace(CAPTURE, age_s=31), "pipelines": SPARK})
    assert state(late, "hang", "capture") == "error"
    assert state(late, "hang", "pipelines") == "healthy"
    dead = files(reports={"capture": replace(CAPTURE, age_s=61, alive=False)})
    assert state(dead, "hang", "capture") == "paused"


def test_a_watchdog_of_its_own_reports_the_end_of_the_run() -> None:
    run = Report(pid=1, age_s=1, alive=False, state="running")
    assert state(files(run=run), "process", "run") == ""
    assert state(files(run=run), "process", "run", supervised=False) == "error"
    stopped = replace(run, state="stopped", content={"stopped_by": "SIGTERM"})
    assert state(files(run=stopped), "process", "run", supervised=False) == "paused"
    gone = replace(files(run=None), running_s=5.0)
    assert state(gone, "process", "run", supervised=False) == "initializing"


def test_processes_without_a_supervisor() -> None:
    def alone(report: Report) -> str:
        facts = files(run=None, processes=(), reports={"capture": report})
        return state(facts, "process", "capture")

    assert alone(CAPTURE) == "healthy"
    assert alone(replace(CAPTURE, alive=False)) == "error"
    assert alone(replace(CAPTURE, alive=False, state="stopped")) == "paused"
    assert alone(replace(CAPTURE, alive=False, state="GAP")) == "error"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"state": "running"}, "healthy"),
        ({"state": "starting"}, "initializing"),
        ({"state": "paused"}, "paused"),
        ({"state": "retrying", "code": "SINK_UNREACHABLE"}, "error"),
        ({"state": "failed", "code": "POISONED"}, "error"),
        ({"refused": ("orders",)}, "warning"),
    ],
)
def test_pipelines(change: dict[str, Any], expected: str) -> None:
    assert state(pipeline(**change), "pipeline", "orders") == expected


def test_a_paused_pipeline_is_paused_in_all_checks() -> None:
    facts = pipeline(state="paused", position=Position(Lsn(1), 0))
    assert state(facts, "progress", "orders") == "paused"
    assert state(facts, "lag", "orders") == "paused"


def test_parked_messages() -> None:
    assert state(pipeline(parked=1), "parked", "orders") == "warning"
    assert state(pipeline(parked=4), "parked", "orders", parked=5) == "healthy"


@pytest.mark.parametrize(
    ("free", "expected"), [(50, "healthy"), (9, "warning"), (4, "error"), (0, "error")]
)
def test_disks(free: int, expected: str) -> None:
    disk = DiskFact(folder="data", free_bytes=free, total_bytes=100)
    assert state(files(disks=(disk,)), "disk", "data") == expected


def test_a_full_disk_is_an_error_whatever_the_threshold_is() -> None:
    disk = DiskFact(folder="data", free_bytes=0, total_bytes=100)
    assert state(files(disks=(disk,)), "disk", "data", disk_free_percent=0) == "error"


def test_the_log() -> None:
    assert state(files(log=None, log_error="CORRUPT"), "log") == "error"
    assert state(files(log=None), "log") == "initializing"
    assert state(FACTS, "log_size", log_bytes=1000) == "error"
    assert state(FACTS, "log_size", log_bytes=1200) == "warning"


def test_memory() -> None:
    assert state(files(memory_bytes=900), "memory") == "error"
    assert state(files(memory_bytes=899), "memory") == "healthy"
    assert state(FACTS, "memory", memory_bytes=100) == "error"
    assert state(files(memory_bytes=None), "memory") == ""


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (CertificateFact(key="k", ends_at=2000 + 20 * DAY_S), "healthy"),
        (CertificateFact(key="k", ends_at=2000 + 13 * DAY_S), "warning"),
        (CertificateFact(key="k", ends_at=1999.0), "error"),
        (CertificateFact(key="k", error="cannot be read: No such file"), "error"),
    ],
)
def test_certificates(fact: CertificateFact, expected: str) -> None:
    assert state(files(certificates=(fact,)), "certificate", "k") == expected


def test_replicas() -> None:
    assert state(files(quorum=False), "quorum") == "error"
    assert state(files(quorum=True), "quorum") == "healthy"
    away = FollowerFact(address="db2:7432", connected=False)
    assert state(files(followers=(away,)), "follower", "db2:7432") == "warning"


def test_a_disk_that_does_not_answer() -> None:
    """GIVEN files that nobody could read for long THEN that is the error, and nothing else is said
    about what they hold."""
    motion, ahead = Motion(), source(wal_end=Lsn(5000), beats=(Beat(lsn=Lsn(2000), at=900.0),))
    results(ahead, motion)
    found = results(replace(ahead, files_age_s=31.0, now=2000.0), motion)
    assert {str(key): str(each.state) for key, each in found.items()} == {
        "files": "error",
        "source": "healthy",
        "slot": "healthy",
        "publication": "healthy",
        "wal_kept": "healthy",
    }


def test_what_follows_from_something_else_is_explained() -> None:
    """GIVEN a process that hangs THEN that its pipelines do not move needs no alert of its own."""
    late = {"capture": CAPTURE, "pipelines": replace(SPARK, age_s=100)}
    motion = Motion()
    behind = pipeline(position=Position(Lsn(1), 0)).files or FILES
    for now in (0.0, 100.0):
        facts = replace(FACTS, now=now, files=replace(behind, reports=late))
        found = results(facts, motion)
    stalled = found[Key("progress", "orders")]
    assert stalled.state == "error"
    assert explained(stalled, found)
    assert not explained(found[Key("hang", "pipelines")], found)


def stalled_with(**more: Any) -> tuple[Result, dict[Key, Result]]:
    """A pipeline that does not move for longer than is allowed, in a system with these facts."""
    motion = Motion()
    for now in (0.0, 100.0):
        facts = pipeline(position=Position(Lsn(1), 0), **more.get("pipeline", {}))
        facts = replace(facts, now=now, source=replace(SOURCE, **more.get("source", {})))
        found = results(facts, motion)
    return found[Key("progress", "orders")], found


def test_a_warning_explains_no_error() -> None:
    """GIVEN a pipeline with a topic that is refused WHEN the pipeline does not move THEN that is an
    alert of its own."""
    stalled, found = stalled_with(pipeline={"refused": ("a",)})
    assert found[Key("pipeline", "orders")].state == "warning"
    assert stalled.state == "error"
    assert not explained(stalled, found)


def test_capture_does_not_explain_a_pipeline() -> None:
    """GIVEN capture without a connection WHEN a pipeline does not deliver what is in the log THEN
    that is an alert of its own."""
    stalled, found = stalled_with(source={"active": False})
    found[Key("quorum")] = error("quorum", "fewer followers")
    assert found[Key("replication")].state == "error"
    assert not explained(stalled, found)
    late = error("progress", "late")
    assert explained(late, found)


def test_a_final_state_explains_itself() -> None:
    """GIVEN PostgreSQL that does not answer WHEN capture ends THEN a final state is sent, and that
    it cannot connect is not."""
    found = {Key("source"): error("source", "away")}
    assert explained(error("process", "UNREACHABLE", subject="capture"), found)
    assert not explained(error("process", "GAP", subject="capture", at_once=True), found)


def test_a_pipeline_that_does_not_start_is_an_error() -> None:
    motion = Motion()
    for now in (0.0, 181.0):
        found = results(replace(pipeline(state="starting"), now=now), motion)
    assert found[Key("pipeline", "orders")].state == "error"


def test_causes_do_not_explain_each_other() -> None:
    """Checks that explain each other in a circle would all stay silent."""
    late = results(source(beats=(Beat(lsn=Lsn(990), at=990.0),)))
    for key in late:
        seen, more = set[Key](), {key}
        while more:
            more = {cause for each in more for cause in causes(each)} - seen
            seen |= more
        assert key not in seen


def test_texts_of_errors_are_not_sent() -> None:
    """The error of an expression may quote a row: only its code is part of a result."""
    assert "message" not in PipelineFact.__slots__
    found = results(pipeline(state="failed", code="BAD_EXPRESSION"))[Key("pipeline", "orders")]
    assert found.summary == "BAD_EXPRESSION: a final state"


def test_the_guide_lists_every_check() -> None:
    root = Path(__file__).parents[3]
    code = "".join(
        path.read_text() for path in sorted((root / "src/tailrace/watch/checks").glob("*.py"))
    )
    kinds = "healthy|warning|error|initializing|paused"
    names = set(re.findall(rf'\b(?:{kinds})\(\s*"([a-z_]+)"', code))
    guide = (root / "docs/guides/alerts.md").read_text().partition("## The checks")[2]
    assert set(re.findall(r"^\| `([a-z_]+)`", guide, re.MULTILINE)) == names
    assert len(names) == 25
