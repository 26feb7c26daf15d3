"""How far are backfills and snapshots?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.backfill import queue
from tailrace.backfill.order import FINISHED
from tailrace.observe.figure import document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.page import Document
    from tailrace.console.system import System


def backfills(system: System, query: Mapping[str, str]) -> Document:
    """All backfills, the newest first."""
    del query
    found = queue.list_backfills(system.config)
    return {
        "backfills": [{**each, "finished": each["state"] in FINISHED} for each in reversed(found)],
        "pipelines": list(system.config.pipelines),
    }


def snapshots(system: System, query: Mapping[str, str]) -> Document:
    """The snapshots on request since the start, the newest first."""
    del query
    return {"snapshots": [document(each) for each in reversed(system.figures().snapshots)]}
