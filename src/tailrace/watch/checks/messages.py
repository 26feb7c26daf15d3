"""Checks of what the system is for: messages ingested, filtered, pending and delivered.

The other checks look for causes. These send alerts of their own only where none of them explains
what is found here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import ExpressionError, MalformedError, SchemaChangedError
from tailrace.watch.checks.processes import is_stopping
from tailrace.watch.result import error, healthy, hint_of, initializing, paused, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.config import Alerts
    from tailrace.watch.facts import Facts, FileFacts, PipelineFact
    from tailrace.watch.motion import Motion
    from tailrace.watch.result import Result

_FILTER_CODES = (ExpressionError.code, MalformedError.code, SchemaChangedError.code)
"""Errors of decoding a change, or of computing `where`, `select` and the other expressions."""


def message_checks(facts: Facts, motion: Motion, alerts: Alerts) -> Iterator[Result]:
    """All checks of messages."""
    files = facts.files
    if files is None:
        return
    if not facts.follower:
        yield _ingested(files, motion, alerts)
    for pipeline in files.pipelines:
        yield from _of(facts, files, pipeline, motion, alerts)


def _ingested(files: FileFacts, motion: Motion, alerts: Alerts) -> Result:
    report = files.reports.get("capture")
    if report is None or (report.alive and report.state == "starting"):
        return initializing("ingested", "capture has not reported yet")
    if report.ended or is_stopping(files):
        return paused("ingested", "capture was stopped")
    if not report.alive or report.state != "streaming":
        return error(
            "ingested", "no change comes to the log: capture does not stream",
            "See the check replication.",
        )  # fmt: skip
    still_s = motion.capture_still_s
    if still_s >= alerts.stalled_s:
        return error(
            "ingested", f"no change has come to the log for {still_s:.0f} s",
            "See the check progress of capture.",
        )  # fmt: skip
    changes = report.content.get("changes", 0)
    return healthy("ingested", f"{changes} changes since capture started")


def _of(
    facts: Facts, files: FileFacts, pipeline: PipelineFact, motion: Motion, alerts: Alerts
) -> Iterator[Result]:
    report = files.reports.get("pipelines")
    checks, name = ("filtered", "pending", "delivered"), pipeline.name
    if pipeline.state == "paused" or is_stopping(files) or (report is not None and report.ended):
        yield from (paused(check, "the pipeline was paused or stopped", name) for check in checks)
    elif report is None or not pipeline.state or pipeline.position is None:
        yield from (initializing(check, "not reported yet", name) for check in checks)
    else:
        yield _filtered(pipeline)
        yield _pending(facts, files, pipeline, motion, alerts)
        yield _delivered(facts, pipeline, motion, alerts)


def _filtered(pipeline: PipelineFact) -> Result:
    name, code = pipeline.name, pipeline.code
    if code in _FILTER_CODES and pipeline.state != "running":
        return error("filtered", f"{code}: a change cannot be computed", hint_of(code), name)
    if pipeline.state == "starting":
        return initializing("filtered", "the pipeline starts", name)
    return healthy("filtered", "changes can be decoded and computed", name)


def _pending(
    facts: Facts, files: FileFacts, pipeline: PipelineFact, motion: Motion, alerts: Alerts
) -> Result:
    assert pipeline.position is not None
    name, lag_s = pipeline.name, motion.lag_s(pipeline, files.log, facts.now)
    waiting = max(files.log.end.lsn - pipeline.position.lsn, 0) if files.log else 0
    found = f"{waiting / 2**20:,.1f} MiB of WAL are pending, since {lag_s:.0f} s"
    hint = "See docs/reference/performance.md."
    if lag_s >= alerts.lag_s:
        return error("pending", found, hint, name)
    if lag_s >= alerts.lag_s / 2:
        return warning("pending", found, hint, name)
    return healthy("pending", found, name)


def _delivered(facts: Facts, pipeline: PipelineFact, motion: Motion, alerts: Alerts) -> Result:
    name, failing_s = pipeline.name, motion.failing_s(pipeline.name, facts.now)
    if failing_s >= alerts.stalled_s:
        return error(
            "delivered", f"the sink has accepted nothing for {failing_s:.0f} s, and answers",
            "Check its sink: it refuses messages, or asks to send them later.", name,
        )  # fmt: skip
    if pipeline.delivered is None:
        return initializing("delivered", "not counted yet", name)
    found = f"{pipeline.delivered} messages since the process started"
    return healthy("delivered", f"{found}, {pipeline.failures} attempts failed", name)
