"""What `/ready` and `/status` answer, derived from the figures of a system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.observe.bridge import bridge_figures
from tailrace.observe.figure import document

if TYPE_CHECKING:
    from tailrace.config import Config
    from tailrace.observe.figures import SystemFigures


def problems(system: SystemFigures) -> list[str]:
    """Why the system is not ready, one sentence per reason; empty if it is ready."""
    reasons = [
        f"process {process.name}: {process.state}"
        for process in system.processes
        if not process.up or process.state.isupper()
    ]
    if system.following is not None and not _captures(system):
        if not reasons and not system.following.connected:
            reasons.append("no leader is connected")
    elif not _captures(system):
        reasons.append("process capture: down")
    elif not reasons and not system.capture.connected:
        reasons.append("capture is not streaming")
    if system.leading is not None and system.leading.in_quorum is False:
        reasons.append(
            f"fewer than {system.leading.quorum} followers are connected: "
            "PostgreSQL keeps its WAL until they are"
        )
    for pipeline in system.pipelines:
        if not pipeline.running and pipeline.state != "paused":
            code = f" ({pipeline.code})" if pipeline.code else ""
            reasons.append(f"pipeline {pipeline.name}: {pipeline.state}{code}")
        reasons += [
            f"pipeline {pipeline.name}: topic {each.destination} is refused ({each.code})"
            for each in pipeline.refused
        ]
    return reasons


def _captures(system: SystemFigures) -> bool:
    return any(process.name == "capture" for process in system.processes)


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
