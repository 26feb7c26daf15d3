"""All checks of one moment, and which of them only follow from others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.watch.checks.machine import UNREAD_S, machine_checks
from tailrace.watch.checks.pipelines import pipeline_checks
from tailrace.watch.checks.processes import process_checks
from tailrace.watch.checks.source import source_checks
from tailrace.watch.result import Key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.config import Alerts
    from tailrace.watch.facts import Facts
    from tailrace.watch.motion import Motion
    from tailrace.watch.result import Result

_SAME = "*"
CAUSES: Mapping[str, tuple[Key, ...]] = {
    "replication": (Key("source"), Key("slot"), Key("process", "capture"), Key("hang", "capture")),
    "progress": (
        Key("pipeline", _SAME), Key("process", _SAME), Key("hang", _SAME), Key("replication"),
        Key("process", "pipelines"), Key("hang", "pipelines"), Key("quorum"),
    ),
    "heartbeat": (
        Key("progress", _SAME), Key("pipeline", _SAME), Key("lag", _SAME), Key("replication"),
        Key("process", "pipelines"), Key("hang", "pipelines"), Key("process", "capture"),
        Key("hang", "capture"), Key("progress", "capture"),
    ),
    "lag": (Key("progress", _SAME), Key("pipeline", _SAME)),
    "pipeline": (Key("process", "pipelines"), Key("hang", "pipelines")),
    "hang": (Key("files"),),
}  # fmt: skip
"""By check: others that explain it. While one of them is bad, it sends no alert of its own."""


SOURCE_CHECKS = frozenset(
    {
        *map(Key, ("source", "slot", "publication", "replication", "wal_kept")),
        Key("progress", "capture"),
        Key("heartbeat", "log"),
    }
)
"""Those that need an answer of PostgreSQL. Without one, their last results stay."""


def evaluate(facts: Facts, motion: Motion, alerts: Alerts) -> dict[Key, Result]:
    """The results of all checks that can be said something about now."""
    results = list(machine_checks(facts, alerts))
    if facts.files_age_s > UNREAD_S:
        # What was read before the disk hung says nothing about now.
        facts = replace(facts, files=None)
    motion.note(facts)
    results += source_checks(facts, motion, alerts)
    results += process_checks(facts, alerts)
    results += pipeline_checks(facts, motion, alerts)
    return {result.key: result for result in results}


def explained(key: Key, results: Mapping[Key, Result]) -> bool:
    """Whether another check that is bad explains this one."""
    for cause in CAUSES.get(key.check, ()):
        subject = key.subject if cause.subject == _SAME else cause.subject
        found = results.get(Key(cause.check, subject))
        if found is not None and found.state.bad and found.key != key:
            return True
    return False
