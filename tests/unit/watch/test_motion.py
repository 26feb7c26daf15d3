"""What stands still, and for how long: facts of one moment after another."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.config import Config
from tailrace.position import Lsn, Position
from tailrace.watch import memory
from tailrace.watch.alerting import Alerting
from tailrace.watch.facts import DiskFact, ProcessFact
from tailrace.watch.files import FileWatch
from tailrace.watch.motion import Motion
from tailrace.watch.result import Key
from tests.unit.watch.making import ALERTS, FILES, LOG, files, pipeline, results, source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.watch.facts import Facts
    from tailrace.watch.result import Result


def test_progress_of_capture() -> None:
    """GIVEN WAL ahead of capture WHEN nothing moves for as long as is allowed THEN that is an
    error, and it is none once something moves."""
    motion = Motion()

    def at(now: float, **more: Any) -> str:
        facts = replace(source(**{"wal_end": Lsn(2000), **more}), now=now)
        return str(results(facts, motion)[Key("progress")].state)

    assert at(0) == at(59) == "healthy"
    assert at(60) == "error"
    assert at(61, confirmed=Lsn(1011)) == "healthy"
    assert at(120, confirmed=Lsn(1011)) == "healthy"
    assert at(121, confirmed=Lsn(1011)) == "error"
    # Nothing to do: the insert position of an idle server may be behind a page's header.
    assert at(122, wal_end=Lsn(1011 + 40), confirmed=Lsn(1011)) == "healthy"


def test_time_without_an_answer_does_not_count() -> None:
    motion = Motion()
    ahead = replace(source(wal_end=Lsn(2000)), now=0.0)
    results(ahead, motion)
    away = replace(source(error="away", code="UNREACHABLE", wal_end=None), now=50.0)
    assert Key("progress") not in results(away, motion)
    silent = replace(ahead, now=300.0, source_age_s=250.0)
    assert Key("progress") not in results(silent, motion)

    def at(now: float) -> str:
        return str(results(replace(ahead, now=now), motion)[Key("progress")].state)

    assert at(310.0) == at(369.0) == "healthy"
    assert at(370.0) == "error"


def test_progress_and_lag_of_a_pipeline() -> None:
    """GIVEN a log that grows WHEN a pipeline stands still THEN it stalls, and its lag is the age of
    the first end of the log that it has not reached."""
    motion = Motion()

    def at(now: float, end: int, position: int) -> tuple[str, str]:
        log = replace(LOG, end=Position(Lsn(end), 0))
        facts = pipeline(position=Position(Lsn(position), 0))
        facts = replace(facts, now=now, files=replace(facts.files or FILES, log=log))
        found = results(facts, motion)
        lag = found[Key("lag", "orders")].summary
        return str(found[Key("progress", "orders")].state), lag

    assert at(0, 100, 100) == ("healthy", "0 s behind the log")
    assert at(10, 200, 100) == ("healthy", "0 s behind the log")
    assert at(69, 300, 100) == ("healthy", "59 s behind the log")
    assert at(70, 400, 100) == ("error", "60 s behind the log")
    assert at(80, 400, 250) == ("healthy", "11 s behind the log")
    assert at(90, 400, 400) == ("healthy", "0 s behind the log")


def test_lag_from_before_the_watchdog_started() -> None:
    facts = pipeline(position=Position(Lsn(1), 0), committed_at=100.0 - 7200)
    assert "7200 s" in results(facts)[Key("lag", "orders")].summary


def test_lag_over_days_takes_little_memory() -> None:
    motion = Motion()
    for second in range(20_000):
        log = replace(LOG, end=Position(Lsn(100 + second), 0))
        motion.note(replace(files(log=log), now=float(second)))
    found = motion.lag_s(
        replace(FILES.pipelines[0], position=Position(Lsn(100), 0)), log, now=20_000.0
    )
    assert found == pytest.approx(20_000, rel=0.01)
    assert len(motion._ends) <= 600


def sent(moments: Iterator[tuple[float, Facts]]) -> list[tuple[str, str, str]]:
    """What is sent while the facts are these: kind, check and severity."""
    motion, alerting, now = Motion(), Alerting(ALERTS), 0.0
    found: dict[Key, Result] = {}
    notices = []
    for for_s, facts in moments:
        for _ in range(int(for_s)):
            now += 1
            found |= results(replace(facts, now=now), motion)
            notices += alerting.update(found, now, time=now, gone=lambda _: False)
    return [(each.kind, str(each.alert.key), each.alert.severity) for each in notices]


def test_a_sink_that_hangs_until_its_timeout() -> None:
    """GIVEN a sink that accepts messages and does not answer WHEN the pipeline runs for 90 s and
    then waits to start again, many times THEN no recovery is sent before it has delivered."""
    behind = Position(Lsn(1), 0)
    runs = pipeline(position=behind)
    retries = pipeline(position=behind, state="retrying", code="SINK_UNREACHABLE")
    hangs = [(90.0, runs), (20.0, retries)] * 5
    fired = [("firing", "progress orders", "error"), ("firing", "pipeline orders", "error")]
    assert sent(iter(hangs)) == fired
    works = [(10.0, pipeline(position=Position(Lsn(2), 0))), (30.0, pipeline())]
    ends = sent(iter([*hangs, *works]))[len(fired) :]
    assert sorted(ends) == [
        ("resolved", "pipeline orders", "error"), ("resolved", "progress orders", "error"),
    ]  # fmt: skip


def test_a_batch_that_lasts() -> None:
    """GIVEN a batch that takes minutes WHEN one of its lanes writes THEN the pipeline moves; an
    attempt that writes the same again does not move."""
    motion = Motion()

    def at(now: float, **written: int) -> str:
        lanes = {int(name[1:]): Position(Lsn(500), end) for name, end in written.items()}
        facts = replace(pipeline(position=Position(Lsn(1), 0), written=lanes), now=now)
        return str(results(facts, motion)[Key("progress", "orders")].state)

    assert at(0) == at(59, _0=1) == at(118, _0=1, _1=7) == at(177, _0=2, _1=7) == "healthy"
    assert at(178) == at(200, _0=1) == at(236, _0=2) == "healthy"
    assert at(237, _0=2, _1=7) == "error"
    assert at(238, _0=3) == "healthy"


def test_a_pipeline_that_failed_and_has_nothing_to_deliver() -> None:
    """Nothing can show that its sink works, and nothing waits for it."""
    motion = Motion()
    results(pipeline(state="retrying"), motion)
    assert results(pipeline(), motion)[Key("pipeline", "orders")].state == "healthy"


def crashing(runs_s: float, waits_s: float) -> Iterator[tuple[float, Facts]]:
    for restarts in range(20):
        process = ProcessFact(name="pipelines", state="running", restarts=restarts, exit_code=1)
        runs = replace(process, pid=10 + restarts)
        yield runs_s, files(processes=(runs,))
        yield waits_s, files(processes=(replace(process, state="backing-off"),))


def test_a_process_that_crashes_every_half_a_minute() -> None:
    """GIVEN a process that runs for 20 s after each start WHEN its supervisor waits in between THEN
    there is one alert, without a recovery."""
    assert sent(crashing(20, 30)) == [("firing", "process pipelines", "error")]


def test_a_process_that_crashes_after_more_than_a_minute() -> None:
    """It is started again at once each time, so it is never seen to be down."""
    assert sent(crashing(70, 0)) == [("firing", "process pipelines", "warning")]


def test_processes_that_were_stopped_have_not_crashed() -> None:
    """GIVEN settings that are applied many times THEN the processes that restart are no alert."""
    process = ProcessFact(name="pipelines", state="running", exit_code=0)
    started = (replace(process, pid=each, restarts=each) for each in range(20))
    assert sent((20.0, files(processes=(each,))) for each in started) == []


def test_a_process_that_was_restarted_has_to_prove_itself() -> None:
    motion = Motion()
    process = ProcessFact(name="pipelines", state="running", restarts=1, exit_code=1, pid=5)

    def at(now: float, **more: Any) -> str:
        facts = files(processes=(replace(process, **more),))
        found = results(replace(facts, now=now), motion)
        return str(found[Key("process", "pipelines")].state)

    assert at(0) == at(59) == "initializing"
    assert at(60) == "healthy"
    assert at(61, pid=6, restarts=2) == "initializing"


def test_a_value_around_a_limit() -> None:
    """GIVEN a disk with as much space as is needed, more or less WHEN retention and writers take
    turns THEN there is one alert, until clearly more is free."""
    motion = Motion()

    def at(free: int) -> str:
        disk = DiskFact(folder="log", free_bytes=free, total_bytes=1000)
        return str(results(files(disks=(disk,)), motion)[Key("disk", "log")].state)

    assert at(101) == "healthy"
    assert at(99) == at(101) == at(140) == "warning"
    assert at(49) == at(51) == "error"
    assert at(98) == "warning"
    assert at(150) == at(101) == "healthy"


def test_the_least_memory_of_half_a_minute_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, now = iter([900, 500, 900, 900, 900]), itertools.count(0, 10)
    monkeypatch.setattr(memory, "used_bytes", lambda _: next(used))
    config = Config.model_validate({"data": tmp_path, "log": {"path": tmp_path / "log"}})
    watch = FileWatch(config, clock=lambda: float(next(now)))
    assert [watch.ask().memory_bytes for _ in range(5)] == [900, 500, 500, 500, 900]


def test_a_pipeline_that_does_not_run_does_not_stall() -> None:
    """Its state says why: starting Spark takes time, and a sink that is away has its own code."""
    motion = Motion()
    behind = pipeline(state="starting", position=Position(Lsn(1), 0))
    for now in (0.0, 100.0):
        found = results(replace(behind, now=now), motion)
        assert found[Key("progress", "orders")].state == "healthy"
