"""What does the watchdog find, and what has it found?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.run.health import health_document
from tailrace.run.query import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.page import Document
    from tailrace.console.system import System

_EVENTS, _MOST = 100, 1000
_WORST_FIRST = {"error": 0, "warning": 1, "initializing": 2, "paused": 3}


def health(system: System, query: Mapping[str, str]) -> Document:
    """The checks, the worst first, the alerts, and the events of the last 30 days."""
    check, subject = query.get("check", ""), query.get("subject", "")
    limit = number(query, "limit", _EVENTS, _MOST)
    found = health_document(system.config, history=limit, check=check, subject=subject)
    checks = sorted(
        found["checks"],
        key=lambda each: (_WORST_FIRST.get(each["state"], 4), each["check"], each["subject"]),
    )
    alerts = system.config.alerts
    return {
        **found,
        "checks": checks,
        "configured": alerts is not None,
        "supervised": alerts is not None and alerts.supervised,
        "filter": {"check": check, "subject": subject},
        "limit": limit,
    }
