"""Checks of processes: as their supervisor sees them, and whether they still report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.watch.result import error, final, healthy, hint_of, initializing, paused, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.config import Alerts
    from tailrace.watch.facts import Facts, FileFacts, ProcessFact, Report
    from tailrace.watch.motion import Motion
    from tailrace.watch.result import Result

FRESH_S = 5.0
"""A status file is written every second. Half of `stalled_s` without a new one is too long: so what
hangs is known before what follows from it."""
_START_S = 15.0
"""A run that was started together with the watchdog has reported by then."""
_PROVEN_S = 60.0
"""A process that ran this long after a restart works. The supervisor waits at most half as long
before a restart, so one that crashes again and again does not recover in between."""
_CRASHES, _WITHIN_S = 3, 600.0
"""So many are reported, however long the process runs in between."""


def process_checks(facts: Facts, motion: Motion, alerts: Alerts) -> Iterator[Result]:
    """All checks of processes."""
    files = facts.files
    if files is None:
        return
    yield from _supervisor(facts, files, alerts)
    stopping = is_stopping(files)
    for process in files.processes:
        if process.name != "watch":
            report = files.reports.get(process.name)
            found = _process(process, report, stopping=stopping)
            yield _running(process, facts.now, motion) if found.state == "healthy" else found
    for name, report in files.reports.items():
        yield _hang(name, report, alerts, stopping=stopping)
    yield from _unsupervised(files)


def is_stopping(files: FileFacts) -> bool:
    """Whether all of it is being stopped, or was."""
    return files.run is not None and files.run.state in ("stopping", "stopped")


def _supervisor(facts: Facts, files: FileFacts, alerts: Alerts) -> Iterator[Result]:
    run = files.run
    if run is not None:
        yield _hang("run", run, alerts, stopping=False)
    if alerts.supervised:
        return
    if run is not None and run.state == "stopped" and run.content.get("stopped_by"):
        yield paused("process", "`tailrace run` was stopped", "run")
    elif run is not None and run.alive:
        yield healthy("process", "running", "run")
    elif run is None and facts.running_s < _START_S:
        yield initializing("process", "`tailrace run` has not reported yet", "run")
    else:
        yield error("process", "`tailrace run` does not run", "Start it: tailrace run", "run")


def _process(process: ProcessFact, report: Report | None, *, stopping: bool) -> Result:
    name, state, code = process.name, process.state, process.code
    if report is not None and report.pid == process.pid and final(report.state):
        # The supervisor reports once per second; the process itself says it when it ends.
        code = report.state
    if code and final(code):
        return error("process", f"{code}: a final state", hint_of(code), name, at_once=True)
    if state == "failed":
        return error("process", "failed", "See its log lines.", name, at_once=True)
    if stopping:
        return paused("process", "Tailrace is being stopped", name)
    if state == "backing-off":
        found = f"exits repeatedly ({process.restarts} restarts)"
        return error("process", f"{code}: {found}" if code else found, hint_of(code), name)
    if state == "running":
        return healthy("process", "running", name)
    return initializing("process", state or "unknown", name)


def _running(process: ProcessFact, now: float, motion: Motion) -> Result:
    name = process.name
    crashes = motion.crashes(name, now - _WITHIN_S)
    if crashes >= _CRASHES:
        found = f"has crashed {crashes} times within {_WITHIN_S / 60:.0f} minutes"
        return warning("process", found, "See its log lines.", name)
    if process.restarts and motion.process_s(name) < _PROVEN_S:
        return initializing("process", "was restarted", name)
    return healthy("process", "running", name)


def _hang(name: str, report: Report, alerts: Alerts, *, stopping: bool) -> Result:
    """A process that exists and does not report is stopped, swapped out or waits for a disk."""
    if not report.alive or report.ended or stopping:
        return paused("hang", "does not run", name)
    if report.age_s <= max(alerts.stalled_s / 2, FRESH_S):
        return healthy("hang", "reports", name)
    who = "the supervisor" if name == "run" else name
    return error(
        "hang", f"{who} runs and has not reported for {report.age_s:.0f} s",
        "Kill the process: its supervisor starts it again, and nothing is lost.", name,
    )  # fmt: skip


def _unsupervised(files: FileFacts) -> Iterator[Result]:
    """Without a supervisor, what a process has written last."""
    if files.run is not None and (files.run.alive or is_stopping(files)):
        return
    for name, report in files.reports.items():
        if final(report.state):
            yield error(
                "process", f"{report.state}: a final state", hint_of(report.state), name,
                at_once=True,
            )  # fmt: skip
        elif report.state == "stopped":
            yield paused("process", "stopped", name)
        elif not report.alive:
            yield error("process", "does not run", "Start it again.", name)
        else:
            yield healthy("process", report.state or "running", name)
