"""One look at everything that runs: status files, the log on disk, and the WAL monitor's answer.

What other processes wrote is read with care: a missing or odd field is a missing figure, never an
error. Nothing here waits for PostgreSQL or a sink.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailrace import __version__
from tailrace.errors import TailraceError
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.observe.metrics import (
    BackfillFigures,
    CaptureFigures,
    Figures,
    FindingCount,
    FindingFigures,
    LogFigures,
    PipelineFigures,
    ProcessFigures,
    SlotFigures,
    SnapshotFigures,
)
from tailrace.position import Lsn, Position
from tailrace.run import status
from tailrace.schemas.drift import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tailrace.config import Config
    from tailrace.run.status import Report
    from tailrace.schemas.drift.record import DriftRecord, RecordedDrift

_MIB = 1 << 20
_SHOWN = 20


class Overview:
    """Looks at a running system; `slot` gives the monitor's last answer."""

    def __init__(self, config: Config, slot: Callable[[], SlotFigures]) -> None:
        self._config = config
        self._where = status.folder(config.data)
        self._slot = slot
        self._began = time.time()

    def look(self) -> Figures:
        """Everything, as it is now."""
        run = status.read(self._where, "run")
        capture = status.read(self._where, "capture")
        pipelines = status.read(self._where, "pipelines")
        log, end = self._log()
        findings = record.load(self._config.data)
        began = _number(run.fields, "started_at") if run and run.up else None
        return Figures(
            version=__version__,
            uptime_s=max(time.time() - (began or self._began), 0),
            processes=tuple(_processes(run, {"capture": capture, "pipelines": pipelines})),
            capture=_capture(capture),
            pipelines=tuple(self._pipelines(pipelines, end)),
            snapshots=tuple(_snapshots(pipelines)),
            backfills=tuple(_backfills(pipelines)),
            findings=tuple(_finding(found) for found in findings.found[-_SHOWN:]),
            finding_counts=tuple(_counts(findings)),
            slot=self._slot(),
            log=log,
        )

    def _log(self) -> tuple[LogFigures, Position | None]:
        store = LocalStore(self._config.log.path)
        try:
            log = Log(store)
            segments = log.segments()
            end = log.end()
            size = sum(store.size(name.file) for name in segments)
            earliest = log.earliest()
        except (TailraceError, OSError) as error:
            code = error.code if isinstance(error, TailraceError) else "STORAGE"
            return LogFigures(error=f"{code}: {error}"), None
        figures = LogFigures(
            end=str(end.position),
            end_lsn=end.end_lsn,
            earliest=str(earliest),
            bytes=size,
            segments=len(segments),
        )
        return figures, end.position

    def _pipelines(self, report: Report | None, end: Position | None) -> Iterator[PipelineFigures]:
        told = report.fields.get("pipelines") if report else None
        told = told if isinstance(told, dict) else {}
        up = report is not None and report.up
        for name in [*self._config.pipelines, *(told.keys() - self._config.pipelines.keys())]:
            fields = told.get(name)
            yield _pipeline(name, fields if isinstance(fields, dict) else {}, end, up=up)


def _processes(
    run: Report | None, reports: Mapping[str, Report | None]
) -> Iterator[ProcessFigures]:
    """The supervisor's word on each process, made finer by what the process says of itself."""
    told = run.fields.get("processes") if run and run.up else None
    if not isinstance(told, dict):
        for name, report in reports.items():
            if report is not None:
                yield ProcessFigures(
                    name=name, state=report.state, up=report.up, pid=_int(report.fields, "pid")
                )
        return
    for name, said in told.items():
        fields = said if isinstance(said, dict) else {}
        own = reports.get(name)
        running = fields.get("state") == "running"
        state = str(fields.get("code") or fields.get("state", ""))
        if running and own is not None:
            # Just started: the file is still that of the process before.
            state = own.state if own.fields.get("pid") == fields.get("pid") else "starting"
        yield ProcessFigures(
            name=name,
            state=state,
            up=running and state != "down",
            worker=fields.get("worker") is not False,
            pid=_int(fields, "pid"),
            restarts=_int(fields, "restarts") or 0,
            exit_code=_int(fields, "exit_code"),
        )


def _capture(report: Report | None) -> CaptureFigures:
    if report is None:
        return CaptureFigures()
    fields = report.fields
    return CaptureFigures(
        connected=report.up and report.state == "streaming",
        messages=_int(fields, "messages") or 0,
        changes=_int(fields, "changes") or 0,
        transactions=_int(fields, "transactions") or 0,
        bytes=_int(fields, "bytes") or 0,
        reconnects=_int(fields, "reconnects") or 0,
        acknowledged=_lsn(fields.get("end_lsn")),
    )


def _pipeline(
    name: str, fields: Mapping[str, Any], end: Position | None, *, up: bool
) -> PipelineFigures:
    state = str(fields.get("state", "starting")) if up else "down"
    position = _position(fields.get("position"))
    latency = fields.get("latency_ms")
    latency = latency if isinstance(latency, dict) else {}
    return PipelineFigures(
        name=name,
        state=state,
        running=state == "running",
        code=str(fields.get("code") or ""),
        message=str(fields.get("message") or ""),
        position=str(position) if position else "",
        lag_bytes=max(end.lsn - position.lsn, 0) if end and position else None,
        events=_int(fields, "events") or 0,
        bytes=_int(fields, "bytes") or 0,
        duplicates=_int(fields, "duplicates") or 0,
        batches=_int(fields, "batches") or 0,
        restarts=_int(fields, "restarts") or 0,
        reconnects=_int(fields, "reconnects") or 0,
        events_per_s=_number(fields, "events_per_s"),
        batch_ms=_number(fields, "batch_ms"),
        latency_ms_p50=_number(latency, "p50"),
        latency_ms_p99=_number(latency, "p99"),
        last_committed_at=str(fields.get("last_committed_at") or ""),
    )


def _snapshots(report: Report | None) -> Iterator[SnapshotFigures]:
    for fields in _told(report, "snapshots"):
        yield SnapshotFigures(**_copying(fields), chunks=_int(fields, "chunks") or 0)


def _backfills(report: Report | None) -> Iterator[BackfillFigures]:
    for fields in _told(report, "backfills"):
        yield BackfillFigures(
            **_copying(fields),
            pipeline=str(fields.get("pipeline", "")),
            rows_expected=_int(fields, "rows_expected") or 0,
        )


def _told(report: Report | None, name: str) -> list[Mapping[str, Any]]:
    told = report.fields.get(name) if report else None
    return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []


def _copying(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": str(fields.get("id", "")),
        "table": str(fields.get("table", "")),
        "state": str(fields.get("state", "")),
        "rows": _int(fields, "rows") or 0,
        "bytes": _int(fields, "bytes") or 0,
        "share": _number(fields, "share") or 0.0,
        "seconds": _number(fields, "seconds") or 0.0,
        "error": str(fields.get("error") or ""),
    }


def _finding(found: RecordedDrift) -> FindingFigures:
    return FindingFigures(
        kind=found.kind,
        table=f"{found.namespace}.{found.table}",
        subject=found.subject,
        detail=found.detail,
        hint=found.hint,
        lsn=found.lsn,
        found_at=found.found_at,
        pipelines=found.pipelines,
        waiting=tuple(found.waiting),
    )


def _counts(findings: DriftRecord) -> Iterator[FindingCount]:
    for pipeline, kinds in findings.counts.items():
        for kind, count in kinds.items():
            yield FindingCount(pipeline=pipeline, kind=kind, count=count)


def problems(figures: Figures) -> list[str]:
    """What keeps the system from being ready, in words."""
    found = [
        f"process {process.name}: {process.state}"
        for process in figures.processes
        if not process.up or process.state.isupper()
    ]
    if not any(process.name == "capture" for process in figures.processes):
        found.append("process capture: down")
    if not found and not figures.capture.connected:
        found.append("capture is not streaming")
    for pipeline in figures.pipelines:
        if not pipeline.running:
            reason = f" ({pipeline.code})" if pipeline.code else ""
            found.append(f"pipeline {pipeline.name}: {pipeline.state}{reason}")
    return found


def status_document(figures: Figures, config: Config) -> dict[str, Any]:
    """The body of /status: the bridge's fields first, then Tailrace's own."""
    capture, slot, log = figures.capture, figures.slot, figures.log
    kept = slot.kept_wal_bytes
    return {
        "status": "connected" if capture.connected else "disconnected",
        "uptime_seconds": int(figures.uptime_s),
        "wal_messages_received": capture.messages,
        "cdc_events_published": figures.events,
        "current_lsn": str(capture.acknowledged).lower(),
        "is_connected": capture.connected,
        "reconnect_count": capture.reconnects,
        "nats_reconnect_count": figures.sink_reconnects,
        "last_processing_time_us": figures.processing_us,
        "slot_active": slot.active,
        "wal_lag_bytes": kept,
        "wal_lag_mb": None if kept is None else kept // _MIB,
        "version": figures.version,
        "source": {
            "slot": config.source.slot,
            "publication": config.source.publication,
            "lag_bytes": slot.lag_bytes,
            "checked_at": slot.checked_at or None,
            "error": slot.error or None,
        },
        "processes": {process.name: process for process in figures.processes},
        "capture": capture,
        "log": log,
        "pipelines": {pipeline.name: pipeline for pipeline in figures.pipelines},
        "snapshots": list(map(_with_rates, figures.snapshots)),
        "backfills": list(map(_with_rates, figures.backfills)),
        "schema_findings": figures.findings,
    }


def _with_rates(each: SnapshotFigures) -> dict[str, Any]:
    return asdict(each) | {"rows_per_s": each.rows_per_s, "eta_s": each.eta_s}


def _int(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(fields: Mapping[str, Any], key: str) -> float | None:
    value = fields.get(key)
    return float(value) if isinstance(value, int | float) else None


def _lsn(value: object) -> Lsn:
    try:
        return Lsn.parse(str(value))
    except ValueError:
        return Lsn(0)


def _position(value: object) -> Position | None:
    try:
        return Position.parse(str(value))
    except ValueError:
        return None
