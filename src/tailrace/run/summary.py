"""The summary of a run: what `tailrace run` and the presets log when they end.

It is derived from the status files that the processes wrote last. A process counts from its own
start: if it was restarted, its counts are those since the last restart, and `restarts` names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.observe.figures import CaptureFigures
from tailrace.run import status
from tailrace.run.status import PipelinesStatus, RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def summary(where: Path, *, exit_code: int, now: float) -> dict[str, Any]:
    """The fields of the event `run.summary`; `where` is the folder of the status files."""
    run = _last(where, "run", RunStatus())
    capture = _last(where, "capture", CaptureFigures())
    spark = _last(where, "pipelines", PipelinesStatus())
    pipelines = (spark.pipelines or {}).values()
    complete = [each for each in spark.snapshots if each.state == "complete"]
    return {
        "reason": run.stopped_by or "; ".join(_final_states(run)) or "unknown",
        "exit_code": exit_code,
        "run_time_s": round(max(now - (run.started_at or now), 0.0), 1),
        "captured_changes": capture.changes,
        "captured_transactions": capture.transactions,
        "captured_bytes": capture.bytes,
        "delivered_changes": sum(each.events for each in pipelines),
        "delivered_bytes": sum(each.bytes for each in pipelines),
        "duplicates": sum(each.duplicates for each in pipelines),
        "snapshots": len(complete),
        "snapshot_rows": sum(each.rows for each in complete),
        "snapshots_failed": sum(each.state == "failed" for each in spark.snapshots),
        "last_lsn": str(capture.acknowledged),
        "reconnects": capture.reconnects,
        "sink_reconnects": sum(each.reconnects for each in pipelines),
        "restarts": {
            name: each.restarts for name, each in (run.processes or {}).items() if each.restarts
        },
        "errors": [*_final_states(run), *_failures(spark)],
    }


def _last(where: Path, process: str, missing: status.S) -> status.S:
    """What a process wrote last; the defaults if it wrote nothing."""
    report = status.read(where, process, type(missing))
    return missing if report is None else report.status


def _final_states(run: RunStatus) -> Iterator[str]:
    for name, process in (run.processes or {}).items():
        if process.code:
            yield f"process {name}: {process.code}"


def _failures(spark: PipelinesStatus) -> Iterator[str]:
    for name, pipeline in (spark.pipelines or {}).items():
        if pipeline.code:
            yield f"pipeline {name}: {pipeline.code}: {pipeline.message}"
        for each in pipeline.refused:
            yield f"pipeline {name}: topic {each.destination}: {each.code}: {each.reason}"
    for snapshot in spark.snapshots:
        if snapshot.state == "failed":
            yield f"snapshot {snapshot.id} of {snapshot.table}: {snapshot.error}"
