"""Figures of the watchdog: the states of its health checks, and its alerts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, ClassVar

from tailrace.observe.figure import Figure, Figures, gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFigures(Figures):
    """A health check, of one subject if there are several."""

    LABELS: ClassVar = {"check": "check", "subject": "subject"}

    check: Annotated[str, Figure("Name of the check.")] = ""
    subject: Annotated[str, Figure("What is checked: a pipeline, a process, a disk.")] = ""
    state: Annotated[
        str,
        Figure(
            "healthy, warning, error, initializing or paused.",
            gauge(
                "tailrace_health_check",
                help="1 for the present state of a health check.",
                value_label="state",
            ),
        ),
    ] = ""
    summary: Annotated[str, Figure("What was found.")] = ""
    hint: Annotated[str, Figure("What to do about it.")] = ""
    since: Annotated[datetime | None, Figure("When the state began.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFigures(Figures):
    """An alert that was sent and has not recovered."""

    id: Annotated[str, Figure("Id of the alert.")] = ""
    check: Annotated[str, Figure("Name of the check.")] = ""
    subject: Annotated[str, Figure("What is checked.")] = ""
    severity: Annotated[str, Figure("warning or error.")] = ""
    summary: Annotated[str, Figure("What was found.")] = ""
    since: Annotated[datetime | None, Figure("When the alert was sent first.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFigures(Figures):
    """A channel for alerts."""

    LABELS: ClassVar = {"channel": "name"}

    name: Annotated[str, Figure("Name of the channel.")] = ""
    pending: Annotated[
        int,
        Figure("Messages that are not delivered yet.", gauge("tailrace_alerts_pending")),
    ] = 0
    error: Annotated[str, Figure("Why the last attempt failed; empty if it did not.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFigures(Figures):
    """The watchdog."""

    state: Annotated[
        str,
        Figure(
            "watching, stopping, stopped; down without its process.",
            gauge("tailrace_watchdog_up", help="1 while the watchdog runs.", when="watching"),
        ),
    ] = "starting"
    checks: Annotated[tuple[CheckFigures, ...], Figure("The checks.")] = ()
    alerts: Annotated[tuple[AlertFigures, ...], Figure("The alerts that are firing.")] = ()
    channels: Annotated[tuple[ChannelFigures, ...], Figure("Where alerts are sent.")] = ()
    firing: Annotated[
        int | None, Figure("Number of alerts that are firing.", gauge("tailrace_alerts_firing"))
    ] = None
    history_error: Annotated[str, Figure("Why the history cannot be written.")] = ""
