"""All checks of one moment, and which of them only follow from others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.watch.checks.machine import UNREAD_S, machine_checks
from tailrace.watch.checks.messages import message_checks
from tailrace.watch.checks.pipelines import pipeline_checks
from tailrace.watch.checks.processes import process_checks
from tailrace.watch.checks.source import source_checks
from tailrace.watch.result import RANK, Key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.config import Alerts
    from tailrace.watch.facts import Facts
    from tailrace.watch.motion import Motion
    from tailrace.watch.result import Result

SOURCE_CHECKS = frozenset(
    {
        *map(Key, ("source", "slot", "publication", "replication", "wal_kept")),
        *map(Key, ("progress", "heartbeat")),
    }
)
"""Those that need an answer of PostgreSQL. Without one, their last results stay. `progress` and
`heartbeat` without a subject are those of capture, which a pipeline may be called like."""


def evaluate(facts: Facts, motion: Motion, alerts: Alerts) -> dict[Key, Result]:
    """The results of all checks that can be said something about now."""
    results = list(machine_checks(facts, motion, alerts))
    if facts.files_age_s > UNREAD_S:
        # What was read before the disk hung says nothing about now.
        facts = replace(facts, files=None)
    motion.note(facts)
    results += source_checks(facts, motion, alerts)
    results += process_checks(facts, motion, alerts)
    results += pipeline_checks(facts, motion, alerts)
    results += message_checks(facts, motion, alerts)
    return {result.key: result for result in results}


def causes(key: Key) -> tuple[Key, ...]:
    """The checks that explain a check while they are bad: then it sends no alert of its own."""
    capture = (Key("process", "capture"), Key("hang", "capture"))
    pipelines = (Key("process", "pipelines"), Key("hang", "pipelines"))
    name = key.subject
    found: tuple[Key, ...] = ()
    match key.check, name:
        case ("hang", _):
            found = (Key("files"),)
        case ("process", "capture"):
            found = (Key("source"),)
        case ("replication", _):
            found = (Key("source"), Key("slot"), *capture)
        case ("progress", ""):
            found = (Key("replication"), Key("quorum"), *capture)
        case ("ingested", _):
            found = (Key("progress"), Key("replication"), Key("source"), Key("slot"), *capture)
        case ("heartbeat", ""):
            found = (Key("progress"), Key("replication"), Key("quorum"), *capture)
        # Of a pipeline: what capture lacks does not explain why it does not move in the log.
        case ("pipeline", _):
            found = pipelines
        case ("progress" | "filtered", _):
            found = (Key("pipeline", name), *pipelines)
        case ("lag" | "delivered", _):
            found = (Key("progress", name), Key("pipeline", name), *pipelines)
        case ("heartbeat" | "pending", _):
            found = (Key("lag", name), Key("progress", name), Key("pipeline", name), *pipelines)
    return found


def explained(result: Result, results: Mapping[Key, Result]) -> bool:
    """Whether another check explains this one. A final state explains itself, and nothing explains
    what is more severe."""
    if not result.state.bad or result.at_once:
        return False
    found = (results.get(cause) for cause in causes(result.key))
    rank = RANK[result.state]
    return any(each is not None and RANK.get(each.state, 0) >= rank for each in found)
