"""Checks of pipelines: their state, their progress, their lag, and what they have parked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.watch.checks.processes import is_stopping
from tailrace.watch.checks.source import heartbeat
from tailrace.watch.result import error, final, healthy, hint_of, initializing, paused, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.config import Alerts
    from tailrace.watch.facts import Facts, FileFacts, PipelineFact
    from tailrace.watch.motion import Motion
    from tailrace.watch.result import Result

_START_S = 180.0
"""Starting Spark takes seconds, on a busy machine a minute."""


def pipeline_checks(facts: Facts, motion: Motion, alerts: Alerts) -> Iterator[Result]:
    """All checks of pipelines."""
    files = facts.files
    if files is None:
        return
    for pipeline in files.pipelines:
        state = _state(files, pipeline, motion)
        yield state
        yield _parked(pipeline, motion, alerts)
        if state.state == "paused":
            for check in ("progress", "lag", *(("heartbeat",) if alerts.heartbeat_s else ())):
                yield paused(check, state.summary, pipeline.name)
        elif pipeline.position is not None:
            yield from _motion(facts, files, pipeline, motion, alerts)


def _state(files: FileFacts, pipeline: PipelineFact, motion: Motion) -> Result:
    name, state, code = pipeline.name, pipeline.state, pipeline.code
    report = files.reports.get("pipelines")
    if code and final(code) and state != "running":
        return error("pipeline", f"{code}: a final state", hint_of(code), name, at_once=True)
    if state == "paused":
        return paused("pipeline", "paused by an operator", name)
    if is_stopping(files) or (report is not None and report.ended):
        return paused("pipeline", "Tailrace is being stopped", name)
    if report is None:
        return initializing("pipeline", "Spark has not reported yet", name)
    if not report.alive:
        return error("pipeline", "its process is down", "See the check process.", name)
    return _running_state(files, pipeline, motion)


def _running_state(files: FileFacts, pipeline: PipelineFact, motion: Motion) -> Result:
    """The state of a pipeline whose process runs."""
    name, state, code = pipeline.name, pipeline.state, pipeline.code
    if state in ("", "starting"):
        if motion.state_s(name) < _START_S:
            return initializing("pipeline", "starting", name)
        return error("pipeline", "does not start", "See the log lines of pipelines.", name)
    if state != "running":
        return error("pipeline", f"{state}: {code}" if code else state, hint_of(code), name)
    if pipeline.refused:
        refused = ", ".join(pipeline.refused[:3])
        return warning(
            "pipeline", f"destinations are refused: {refused}", "See /status: `refused`.", name
        )
    if motion.is_recovering(pipeline, files.log):
        # It runs until the sink fails again, for as long as the sink's timeouts.
        return initializing("pipeline", "runs again, and has not delivered since", name)
    return healthy("pipeline", "running", name)


def _parked(pipeline: PipelineFact, motion: Motion, alerts: Alerts) -> Result:
    name, parked = pipeline.name, pipeline.parked
    if parked is None:
        return initializing("parked", "not counted yet", name)
    if motion.exceeds("parked", parked, alerts.parked, severity="warning", subject=name):
        return warning(
            "parked", f"{parked} messages are parked", f"Run: tailrace parked ls {name}", name
        )
    return healthy("parked", f"{parked} messages are parked", name)


def _motion(
    facts: Facts, files: FileFacts, pipeline: PipelineFact, motion: Motion, alerts: Alerts
) -> Iterator[Result]:
    name = pipeline.name
    still_s = motion.pipeline_still_s(name)
    if still_s >= alerts.stalled_s:
        yield error(
            "progress", f"has not moved for {still_s:.0f} s while the log is ahead of it",
            "Check its sink. If that works and receives nothing, kill the process `pipelines`: it "
            "is started again.",
            name,
        )  # fmt: skip
    else:
        yield healthy("progress", "keeps up", name)
    lag_s = motion.lag_s(pipeline, files.log, facts.now)
    if lag_s >= alerts.lag_s:
        yield error(
            "lag", f"{lag_s:.0f} s behind the log", "See docs/reference/performance.md.", name
        )
    else:
        yield healthy("lag", f"{lag_s:.0f} s behind the log", name)
    if alerts.heartbeat_s and facts.source is not None and facts.source.beats:
        # A pipeline with a backlog moves, and may be as far behind as that.
        may_s = max(alerts.lag_s, alerts.stalled_s)
        yield heartbeat(name, _waits_s(facts, files, pipeline), late_s=may_s, missing_s=may_s)


def _waits_s(facts: Facts, files: FileFacts, pipeline: PipelineFact) -> float:
    """How long a heartbeat that is in the log has not passed the pipeline."""
    assert facts.source is not None
    assert pipeline.position is not None
    in_log = files.log.end.lsn if files.log else 0
    return next(
        (
            facts.now - each.at
            for each in facts.source.beats
            if pipeline.position.lsn < each.lsn <= in_log
        ),
        0.0,
    )
