"""Who changed what?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import audit as audit_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.page import Document
    from tailrace.console.system import System

_ENTRIES = 200


def audit(system: System, query: Mapping[str, str]) -> Document:
    """The last entries of the audit file, the newest first."""
    entries = audit_file.latest(system.config.data, limit=10 * _ENTRIES)
    user, action = query.get("user", ""), query.get("action", "")
    chosen = [
        entry
        for entry in entries
        if user in ("", str(entry.get("user"))) and str(entry.get("action", "")).startswith(action)
    ]
    return {"entries": chosen[:_ENTRIES], "user": user, "action": action}
