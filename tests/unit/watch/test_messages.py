"""The checks of messages: ingested, filtered, pending, delivered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.position import Lsn, Position
from tailrace.watch.evaluation import explained
from tailrace.watch.motion import Motion
from tailrace.watch.result import Key
from tests.unit.watch.making import (
    ALERTS,
    CAPTURE,
    FACTS,
    FILES,
    SPARK,
    files,
    pipeline,
    results,
    source,
    state,
)

if TYPE_CHECKING:
    from tailrace.watch.facts import Facts, Report

OF_PIPELINE = ("filtered", "pending", "delivered")
BEHIND = Position(Lsn(1), 0)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (None, "initializing"),
        (replace(CAPTURE, state="starting"), "initializing"),
        (replace(CAPTURE, content={"changes": 7}), "healthy"),
        (replace(CAPTURE, state="reconnecting"), "error"),
        (replace(CAPTURE, state="DISK_FULL", alive=False), "error"),
        (replace(CAPTURE, state="stopped", alive=False), "paused"),
    ],
)
def test_ingested(report: Report | None, expected: str) -> None:
    reports = {"pipelines": SPARK} | ({"capture": report} if report else {})
    assert state(files(reports=reports), "ingested") == expected


def test_nothing_is_ingested_while_capture_does_not_move() -> None:
    """The check of the cause alerts, not this one."""
    motion = Motion()
    for now in (0.0, 60.0):
        found = results(replace(source(wal_end=Lsn(2000)), now=now), motion)
    assert found[Key("ingested")].state == "error"
    assert explained(found[Key("ingested")], found)


def test_a_server_that_is_away_explains_that_nothing_is_ingested() -> None:
    """What needs its answer keeps the result that it had."""
    found = results(FACTS)
    away = source(error="away", code="UNREACHABLE", wal_end=None)
    reports = {"capture": replace(CAPTURE, state="reconnecting"), "pipelines": SPARK}
    found |= results(replace(away, files=replace(FILES, reports=reports)))
    assert found[Key("ingested")].state == "error"
    assert explained(found[Key("ingested")], found)


def test_a_follower_ingests_nothing() -> None:
    assert state(replace(FACTS, follower=True), "ingested") == ""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"state": "running"}, "healthy"),
        ({"state": "starting"}, "initializing"),
        ({"state": "failed", "code": "BAD_EXPRESSION"}, "error"),
        ({"state": "failed", "code": "SCHEMA_CHANGED"}, "error"),
        ({"state": "retrying", "code": "SINK_UNREACHABLE"}, "healthy"),
    ],
)
def test_filtered(change: dict[str, Any], expected: str) -> None:
    assert state(pipeline(**change), "filtered", "orders") == expected


def test_a_pipeline_that_fails_explains_that_nothing_is_filtered() -> None:
    found = results(pipeline(state="failed", code="BAD_EXPRESSION"))
    assert explained(found[Key("filtered", "orders")], found)


def test_pending() -> None:
    """GIVEN a pipeline that moves, and a log that grows faster THEN what waits is a warning from
    half of the allowed lag on, before the lag is an error."""
    motion = Motion()
    found = []
    for number, now in enumerate((0.0, 149.0, 150.0, 299.0, 300.0)):
        facts = replace(pipeline(position=Position(Lsn(1 + number), 0)), now=now)
        seen = results(facts, motion)
        found.append(
            (str(seen[Key("pending", "orders")].state), str(seen[Key("lag", "orders")].state))
        )
    assert found == [
        ("healthy", "healthy"),
        ("healthy", "healthy"),
        ("warning", "healthy"),
        ("warning", "healthy"),
        ("error", "error"),
    ]
    assert explained(seen[Key("pending", "orders")], seen)


class Sink:
    """A pipeline whose sink answers, as its process reports it from second to second."""

    def __init__(self) -> None:
        self.motion = Motion()
        self.delivered = self.failures = 0

    def at(self, now: float, **more: Any) -> str:
        facts: Facts = pipeline(
            **{
                "position": BEHIND, "delivered": self.delivered, "failures": self.failures, **more,
            }
        )  # fmt: skip
        return str(results(replace(facts, now=now), self.motion)[Key("delivered", "orders")].state)


def test_delivered() -> None:
    """GIVEN a sink that refuses every attempt WHEN that lasts THEN it is an error, until the sink
    accepts a message."""
    sink = Sink()
    assert sink.at(0) == "healthy"
    sink.failures = 1
    assert sink.at(1) == sink.at(60) == "healthy"
    sink.failures = 9
    assert sink.at(61) == "error"
    assert sink.at(62, state="retrying", code="SINK_UNREACHABLE") == "error"
    sink.delivered = 1
    assert sink.at(63) == sink.at(200) == "healthy"
    sink.failures = 10
    assert sink.at(201) == "healthy"


def test_a_message_that_was_parked_is_no_trouble_of_the_sink() -> None:
    """GIVEN that everything is delivered or parked THEN old failures say nothing."""
    sink = Sink()
    sink.at(0)
    sink.failures = 5
    assert sink.at(1) == "healthy"
    assert sink.at(2, position=FILES.pipelines[0].position) == "healthy"
    assert sink.at(100) == sink.at(200) == "healthy"


def test_the_counts_of_a_new_process() -> None:
    sink = Sink()
    sink.delivered, sink.failures = 100, 50
    assert sink.at(0) == "healthy"
    sink.delivered = sink.failures = 0
    assert sink.at(1) == sink.at(100) == "healthy"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (pipeline(state="paused"), "paused"),
        (files(reports={"pipelines": replace(SPARK, state="stopped", alive=False)}), "paused"),
        (files(reports={"capture": CAPTURE}), "initializing"),
        (pipeline(position=None), "initializing"),
    ],
)
def test_paused_and_unknown(facts: Facts, expected: str) -> None:
    assert {state(facts, check, "orders") for check in OF_PIPELINE} == {expected}


def test_a_pipeline_that_was_never_counted() -> None:
    assert state(pipeline(delivered=None), "delivered", "orders") == "initializing"
    assert ALERTS.stalled_s == 60
