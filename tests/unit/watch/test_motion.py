"""What stands still, and for how long: facts of one moment after another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.position import Lsn, Position
from tailrace.watch.motion import Motion
from tailrace.watch.result import Key
from tests.unit.watch.making import FILES, LOG, files, pipeline, results, source


def test_progress_of_capture() -> None:
    """GIVEN WAL ahead of capture WHEN nothing moves for as long as is allowed THEN that is an
    error, and it is none once something moves."""
    motion = Motion()

    def at(now: float, **more: Any) -> str:
        facts = replace(source(**{"wal_end": Lsn(2000), **more}), now=now)
        return str(results(facts, motion)[Key("progress", "capture")].state)

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
    assert Key("progress", "capture") not in results(away, motion)


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


def test_a_pipeline_that_does_not_run_does_not_stall() -> None:
    """Its state says why: starting Spark takes time, and a sink that is away has its own code."""
    motion = Motion()
    behind = pipeline(state="starting", position=Position(Lsn(1), 0))
    for now in (0.0, 100.0):
        found = results(replace(behind, now=now), motion)
        assert found[Key("progress", "orders")].state == "healthy"
