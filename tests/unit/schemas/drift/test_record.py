"""The record of drift: counted once, kept while a pipeline waits, shown in status and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import config
from tailrace.observe.kept import SlotFigures
from tailrace.observe.metrics import exposition
from tailrace.run.document import status_document
from tailrace.run.overview import Overview
from tailrace.schemas.drift import record
from tailrace.schemas.drift.record import DriftRecord, RecordedDrift

if TYPE_CHECKING:
    from pathlib import Path


def recorded(number: int, *waiting: str) -> RecordedDrift:
    return RecordedDrift(
        id=str(number), kind="column-default", namespace="public", table="t", relation_id=1,
        subject="d", detail="", hint="", lsn="0/10", found_at="2026-01-01T00:00:00+00:00",
        pipelines={"one": "flag"}, waiting=list(waiting),
    )  # fmt: skip


def test_drift_counts_once_and_waiting_drift_is_kept(tmp_path: Path) -> None:
    drift = DriftRecord()
    assert len(drift.add([recorded(0, "one"), recorded(0, "one")][:1])) == 1
    assert drift.add([recorded(0, "one")]) == []
    drift.add(recorded(number) for number in range(1, 150))
    assert drift.counts == {"one": {"column-default": 150}}
    assert [each.id for each in drift.found[:2]] == ["0", "50"]
    record.save(tmp_path, drift)
    assert record.load(tmp_path) == drift
    assert record.load(tmp_path / "elsewhere") == DriftRecord()


def test_status_and_metrics_show_drift(tmp_path: Path) -> None:
    drift = DriftRecord()
    drift.add([recorded(1, "one")])
    record.save(tmp_path, drift)
    settings = config.Config.model_validate({"data": tmp_path, "log": {"path": tmp_path / "log"}})
    overview = Overview(settings, SlotFigures)
    [shown] = status_document(overview.read(), settings)["schema_findings"]
    assert (shown["table"], shown["kind"]) == ("public.t", "column-default")
    assert shown["waiting"] == ("one",)
    body, _ = exposition(overview.read)
    assert b'tailrace_schema_findings_total{kind="column-default",pipeline="one"} 1.0' in body
