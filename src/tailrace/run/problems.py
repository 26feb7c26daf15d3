"""What is wrong with a running system, in words, and what to do about it.

`/ready` needs the problems because of which the system does not do its work; the console shows all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tailrace.config.alerts import Alerts
from tailrace.errors import UnexpectedError, error_of
from tailrace.run.monitor import CRITICAL_BYTES, WARNING_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.observe.figures import PipelineFigures, SystemFigures

_PIN_S = 24 * 3600.0
_SEEN_DIRECTLY = frozenset(
    {"pipeline", "process", "parked", "quorum", "source", "log", "ingested", "filtered"}
)
"""Checks of the watchdog for what the figures show, too: each problem is named once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that an operator should know. `text` is one sentence."""

    text: str
    severity: Literal["error", "warning"] = "error"
    code: str = ""
    hint: str = ""
    detail: str = ""
    """The text of the error, as the component reports it."""
    pipeline: str = ""
    ready: bool = False
    """Whether the system is not ready because of it."""


def problems(system: SystemFigures, alerts: Alerts | None = None) -> list[Problem]:
    """The problems of a system, those that stop its work first. `alerts` is that section of the
    settings; without it, its defaults count."""
    return [*_unready(system), *_late(system, alerts or Alerts()), *_others(system)]


def hint_of(code: str) -> str:
    """What to do about an error, if all that is known is its code."""
    kind = error_of(code)
    return "" if kind is UnexpectedError and code != kind.code else kind.default_hint


def _unready(system: SystemFigures) -> Iterator[Problem]:
    found = [
        _not_ready(f"process {process.name}: {process.state}", code=_code(process.state))
        for process in system.processes
        if not process.up or process.state.isupper()
    ]
    if system.following is not None and not _captures(system):
        if not found and not system.following.connected:
            hint = "Check that the leader runs and reaches this machine."
            found.append(_not_ready("no leader is connected", hint=hint))
    elif not _captures(system):
        found.append(_not_ready("process capture: down", hint="Start it: tailrace run"))
    elif not found and not system.capture.connected:
        hint = "Check the source: tailrace doctor"
        found.append(_not_ready("capture is not streaming", hint=hint))
    yield from found
    if system.leading is not None and system.leading.in_quorum is False:
        needed = system.leading.quorum
        connected = sum(each.connected and each.version > 1 for each in system.leading.followers)
        yield _not_ready(
            f"{connected} of {needed} needed followers connected: PostgreSQL keeps its WAL",
            hint="Start the followers: tailrace follow",
        )
    for pipeline in system.pipelines:
        yield from _pipeline(pipeline)


def _pipeline(pipeline: PipelineFigures) -> Iterator[Problem]:
    name = pipeline.name
    if not pipeline.running and pipeline.state != "paused":
        code = f" ({pipeline.code})" if pipeline.code else ""
        yield _not_ready(
            f"pipeline {name}: {pipeline.state}{code}",
            code=pipeline.code, detail=pipeline.message, pipeline=name,
        )  # fmt: skip
    for each in pipeline.refused:
        yield _not_ready(
            f"pipeline {name}: topic {each.destination} is refused ({each.code})",
            code=each.code, hint=each.hint, detail=each.reason, pipeline=name,
        )  # fmt: skip


def _late(system: SystemFigures, alerts: Alerts) -> Iterator[Problem]:
    """Pipelines that deliver, and are late all the same: a sink that accepts slowly, or hangs. The
    watchdog, if there is one, measures it by itself."""
    if system.watch is not None and system.watch.state == "watching":
        return
    for pipeline in system.pipelines:
        if pipeline.running and (pipeline.lag_s or 0) >= alerts.lag_s:
            yield Problem(
                text=f"pipeline {pipeline.name} is {pipeline.lag_s:,.0f} s behind the log",
                severity="warning", pipeline=pipeline.name,
                hint="Check its sink. See docs/reference/performance.md.",
            )  # fmt: skip


def _others(system: SystemFigures) -> Iterator[Problem]:
    slot = system.slot
    if slot.error:
        yield _reported("PostgreSQL could not be asked about the slot", slot.error)
    if (kept := slot.kept_wal_bytes or 0) >= WARNING_BYTES:
        yield Problem(
            text=f"PostgreSQL keeps {kept >> 20:,} MiB of WAL for the slot",
            severity="error" if kept >= CRITICAL_BYTES else "warning",
            hint="Check that capture streams. Long transactions delay it, too: tailrace doctor",
        )
    if system.log.error:
        yield _reported("the log cannot be read", system.log.error)
    for pipeline in system.pipelines:
        if pipeline.state == "paused":
            yield Problem(
                text=f"pipeline {pipeline.name} is paused", severity="warning",
                detail=pipeline.message, pipeline=pipeline.name,
                hint=f"tailrace pipeline resume {pipeline.name}",
            )  # fmt: skip
        if pipeline.parked_messages:
            yield Problem(
                text=f"pipeline {pipeline.name}: {pipeline.parked_messages:,} messages are parked",
                severity="warning", pipeline=pipeline.name,
                hint=f"Retry or drop them: tailrace parked ls {pipeline.name}",
            )  # fmt: skip
    for change in system.schema_changes:
        if change.waiting:
            yield Problem(
                text=f"{change.table}: {change.detail}", severity="warning", code=change.kind,
                hint=change.hint, pipeline=change.waiting[0],
            )  # fmt: skip
    yield from _copies(system)
    yield from _watched(system)


def _watched(system: SystemFigures) -> Iterator[Problem]:
    """What only the watchdog sees, and alerts that no channel accepts."""
    watch, pipelines = system.watch, {each.name for each in system.pipelines}
    if watch is None:
        return
    if watch.state == "down":
        hint = "`tailrace run` starts it, unless alerts.supervised is false: tailrace watch"
        yield Problem(
            text="the watchdog does not run: no alerts are sent", severity="warning", hint=hint
        )
        return
    for each in watch.checks:
        if each.state in ("error", "warning") and each.check not in _SEEN_DIRECTLY:
            yield Problem(
                text=f"check {each.check} {each.subject}".rstrip(),
                severity="error" if each.state == "error" else "warning",
                detail=each.summary, hint=each.hint,
                pipeline=each.subject if each.subject in pipelines else "",
            )  # fmt: skip
    for channel in watch.channels:
        if channel.error:
            yield Problem(
                text=f"alerts do not reach the channel {channel.name}", severity="warning",
                detail=channel.error, hint="Correct it, then: tailrace alert test",
            )  # fmt: skip


def _copies(system: SystemFigures) -> Iterator[Problem]:
    for what, copies in (("snapshot", system.snapshots), ("backfill", system.backfills)):
        last = {each.table: each for each in copies}
        for each in last.values():
            if each.state == "failed":
                text = f"the last {what} of {each.table} has failed"
                yield Problem(text=text, severity="warning", detail=each.error)
    for pin in system.pins:
        if pin.age_s > _PIN_S:
            yield Problem(
                text=f"the log is kept for {pin.name}, which has not read it for a day",
                severity="warning",
                hint=f"If it is gone: tailrace log unpin {pin.name}",
            )


def _reported(text: str, error: str) -> Problem:
    """A problem whose error is a code and a text: `UNREACHABLE: no answer`."""
    code, colon, detail = error.partition(": ")
    if not colon or not code.isupper():
        code, detail = "", error
    hint = hint_of(code) if code else ""
    return Problem(text=text, code=code, detail=detail, hint=hint or "Run: tailrace doctor")


def _captures(system: SystemFigures) -> bool:
    return any(process.name == "capture" for process in system.processes)


def _code(state: str) -> str:
    return state if state.isupper() else ""


def _not_ready(
    text: str, *, code: str = "", hint: str = "", detail: str = "", pipeline: str = ""
) -> Problem:
    hint = hint or (hint_of(code) if code else "")
    return Problem(
        text=text, code=code, hint=hint, detail=detail, pipeline=pipeline, ready=True
    )  # fmt: skip
