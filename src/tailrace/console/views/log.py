"""What does the log contain, what keeps it, and who has a copy?"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from tailrace.log.listing import Lister, listing_json
from tailrace.log.retention import pins_document
from tailrace.log.store import LocalStore
from tailrace.observe.figure import document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.page import Document
    from tailrace.console.system import System

_LISTING_S = 15.0
"""Listing reads the headers of all entries, each once."""
_SEGMENTS = 200


def log(system: System, query: Mapping[str, str]) -> Document:
    """Segments, retention and pins."""
    figures, settings = system.figures().log, system.config.log
    found: dict[str, Any] = {"segments": []}
    pins: list[dict[str, Any]] = []
    if not figures.error:
        store = LocalStore(settings.path)
        if query.get("segments") != "false":
            lister = system.kept("lister", math.inf, lambda: Lister(store))
            found = system.kept("segments", _LISTING_S, lambda: listing_json(lister.read()))
        pins = pins_document(store, now=time.time())
    segments = found["segments"]
    return {
        "log": document(figures),
        "path": str(settings.path),
        "segments": segments[::-1][:_SEGMENTS],
        "more_segments": max(len(segments) - _SEGMENTS, 0),
        "changes": sum(each["changes"] for each in segments),
        "retention": {"keep_hours": settings.keep_hours, "keep_bytes": settings.keep_bytes},
        "pins": pins,
    }


def replicas(system: System, query: Mapping[str, str]) -> Document:
    """Followers of this log, or the leader that it follows."""
    del query
    figures, settings = system.figures(), system.config.replication
    return {
        "leader": document(figures.leading) if figures.leading else None,
        "follower": document(figures.following) if figures.following else None,
        "settings": {
            "mode": settings.mode,
            "followers": list(settings.followers),
            "takeover": settings.takeover,
        },
    }
