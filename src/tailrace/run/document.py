"""What `/ready` and `/status` answer, derived from the figures of a system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.observe.bridge import bridge_figures
from tailrace.observe.figure import document
from tailrace.run.problems import problems

if TYPE_CHECKING:
    from tailrace.config import Config
    from tailrace.observe.figures import SystemFigures


def unready(system: SystemFigures) -> list[str]:
    """Why the system is not ready, one sentence per reason; empty if it is ready."""
    return [problem.text for problem in problems(system) if problem.ready]


def status_document(system: SystemFigures, config: Config) -> dict[str, Any]:
    """The body of `/status`: the bridge's fields, then one section per component."""
    return document(bridge_figures(system)) | {
        "version": system.version,
        "source": {
            "slot": config.source.slot,
            "publication": config.source.publication,
            **document(system.slot),
        },
        "processes": {each.name: document(each) for each in system.processes},
        "capture": document(system.capture),
        "log": document(system.log) | {"pins": [document(each) for each in system.pins]},
        "pipelines": {each.name: document(each) for each in system.pipelines},
        "snapshots": [document(each) for each in system.snapshots],
        "backfills": [document(each) for each in system.backfills],
        "schema_findings": [document(each) for each in system.schema_changes],
        "replication": _replication(system),
    }


def _replication(system: SystemFigures) -> dict[str, Any]:
    """The followers of this log, or the leader that it follows."""
    parts = {"leader": system.leading, "follower": system.following}
    return {name: document(figures) for name, figures in parts.items() if figures is not None}
