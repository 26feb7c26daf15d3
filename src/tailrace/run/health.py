"""The document of `GET /health/checks` and of `tailrace health`, from the watchdog's files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tailrace.errors import TailraceError
from tailrace.observe.figure import document
from tailrace.observe.health import WatchFigures
from tailrace.run import status
from tailrace.watch import store

if TYPE_CHECKING:
    from tailrace.config import Config
    from tailrace.watch.alerting import Alert

_ORDER = ("error", "warning", "initializing", "paused", "healthy")


def health_document(
    config: Config, *, history: int = 100, check: str = "", subject: str = ""
) -> dict[str, Any]:
    """States, alerts and history. `state` is the worst of the checks; `down`: no watchdog runs.

    `check` and `subject` select events of the history.
    """
    report = status.read(status.folder(config.data), "watch", WatchFigures)
    figures = report.status if report else WatchFigures(state="down")
    up = report is not None and report.up
    states = {each.state for each in figures.checks}
    worst = next((state for state in _ORDER if state in states), "initializing")
    reported = [_iso(document(each)) for each in figures.alerts] if report else None
    return {
        "state": worst if up else "down",
        "watchdog": report.state if report else "down",
        "checks": [_iso(document(each)) for each in figures.checks],
        "channels": [document(each) for each in figures.channels],
        **_history(config, reported, history, check, subject),
    }


def _history(
    config: Config, reported: list[dict[str, Any]] | None, limit: int, check: str, subject: str
) -> dict[str, Any]:
    """What the watchdog has noted. Without its report, the alerts that it left."""
    try:
        with store.History(store.path_of(config.data)) as found:
            changes = found.changes(limit, check=check, subject=subject)
            recent = found.recent(limit)
            left = [_shown(each) for each in found.firing()]
    except TailraceError as error:
        return {
            "alerts": reported or [],
            "history": [],
            "recovered": [],
            "history_error": error.code,
        }
    return {
        "alerts": left if reported is None else reported,
        "history": [{**each, "at": _time(each["at"])} for each in changes],
        "recovered": [
            _shown(each) | {"recovered_at": _time(each.resolved_at or each.fired_at)}
            for each in recent
        ],
    }


def _shown(alert: Alert) -> dict[str, Any]:
    return {
        "id": alert.id,
        "check": alert.key.check,
        "subject": alert.key.subject,
        "severity": alert.severity,
        "summary": alert.summary,
        "since": _time(alert.fired_at),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _iso(figures: dict[str, Any]) -> dict[str, Any]:
    since = figures.get("since")
    return {**figures, "since": since.isoformat() if isinstance(since, datetime) else None}
