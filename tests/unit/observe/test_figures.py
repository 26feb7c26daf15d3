"""Status figures: what is declared once appears in the JSON of /status and in /metrics."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace import config
from tailrace.observe import bridge, creek, figures, health, kept, replica, schema_changes
from tailrace.observe.bridge import BridgeFigures
from tailrace.observe.copies import BackfillFigures, SnapshotFigures
from tailrace.observe.creek import CreekFigures, CreekReads
from tailrace.observe.figure import Figures, Recorder, document, figures_of
from tailrace.observe.figures import (
    CaptureFigures,
    PipelineFigures,
    ProcessFigures,
    RefusedFigures,
    SystemFigures,
)
from tailrace.observe.health import AlertFigures, ChannelFigures, CheckFigures, WatchFigures
from tailrace.observe.kept import LogFigures, PinFigures, SlotFigures
from tailrace.observe.metrics import exposition
from tailrace.observe.replica import FollowerFigures, FollowingFigures, LeaderFigures
from tailrace.observe.schema_changes import SchemaChangeCount, SchemaChangeFigures
from tailrace.position import Lsn
from tailrace.run.document import status_document

if TYPE_CHECKING:
    from collections.abc import Iterator

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SYSTEM = SystemFigures(
    version="1.2.3",
    uptime_s=5.0,
    processes=(
        ProcessFigures(
            name="capture", state="streaming", up=True, pid=7, exit_code=1, cpu_s=1.5, busy=0.25
        ),
    ),
    capture=CaptureFigures(connected=True, last_committed_at=NOON, acknowledged=Lsn(0x10)),
    leading=LeaderFigures(
        state="replicating",
        mode="sync",
        epoch=7,
        quorum=1,
        quorum_lsn=Lsn(0x10),
        in_quorum=True,
        followers=(
            FollowerFigures(
                address="db2:7432",
                state="streaming",
                connected=True,
                acknowledged=Lsn(0x10),
                lag_bytes=0,
                lag_s=0.5,
                bytes=3,
                resets=1,
            ),
        ),
    ),
    following=FollowingFigures(
        state="following",
        connected=True,
        epoch=7,
        end_lsn=Lsn(0x10),
        last_heard_s=0.1,
        bytes=3,
        resets=1,
        repairs=1,
    ),
    pipelines=(
        PipelineFigures(
            name="bridge",
            shape="creek",
            state="running",
            lag_bytes=1,
            lag_s=0.5,
            events_per_s=1.0,
            parked_messages=2,
            pull_pending=4,
            pull_pending_bytes=400,
            pull_out=3,
            pull_exhausted=1,
            pull_oldest_s=2.5,
            pull_delivered=9,
            pull_redelivered=1,
            pull_acknowledged=5,
            parked_bytes=100,
            open=True,
            batch_ms=81.5,
            latency_ms_p50=100.0,
            latency_ms_p99=250.0,
            last_committed_at=NOON,
            refused=(
                RefusedFigures(
                    pipeline="bridge",
                    destination="orders",
                    code="POISONED",
                    reason="too large",
                    since=NOON,
                ),
            ),
        ),
    ),
    snapshots=(SnapshotFigures(id="s", table="public.t", state="running", format="creek", rows=7),),
    backfills=(BackfillFigures(id="b", table="public.t", state="failed", pipeline="bridge"),),
    schema_changes=(
        SchemaChangeFigures(
            kind="column-default",
            table="public.t",
            subject="a",
            detail="d",
            hint="h",
            lsn="0/1",
            found_at="now",
            pipelines={"bridge": "flag"},
        ),
    ),
    schema_change_counts=(SchemaChangeCount(pipeline="bridge", kind="column-default", count=2),),
    slot=SlotFigures(active=True, kept_wal_bytes=2, lag_bytes=1, tables=3, checked_at="now"),
    log=LogFigures(end="0/10.0", end_lsn=Lsn(0x10), earliest="0/1.0", bytes=4, segments=1),
    pins=(PinFigures(name="bridge", position="0/9.0", age_s=1.5),),
    watch=WatchFigures(
        state="watching",
        checks=(CheckFigures(check="disk", subject="log", state="warning", since=NOON),),
        channels=(ChannelFigures(name="pager", pending=2),),
        firing=1,
    ),
)
KINDS = [
    AlertFigures,
    BackfillFigures,
    BridgeFigures,
    CaptureFigures,
    ChannelFigures,
    CheckFigures,
    CreekFigures,
    CreekReads,
    FollowerFigures,
    FollowingFigures,
    LeaderFigures,
    LogFigures,
    PinFigures,
    PipelineFigures,
    ProcessFigures,
    RefusedFigures,
    SchemaChangeCount,
    SchemaChangeFigures,
    SlotFigures,
    SnapshotFigures,
    WatchFigures,
]
SECTIONS: dict[type[Figures], Any] = {
    BackfillFigures: lambda body: body["backfills"][0],
    BridgeFigures: lambda body: body,
    CaptureFigures: lambda body: body["capture"],
    FollowerFigures: lambda body: body["replication"]["leader"]["followers"][0],
    FollowingFigures: lambda body: body["replication"]["follower"],
    LeaderFigures: lambda body: body["replication"]["leader"],
    LogFigures: lambda body: body["log"],
    PinFigures: lambda body: body["log"]["pins"][0],
    PipelineFigures: lambda body: body["pipelines"]["bridge"],
    ProcessFigures: lambda body: body["processes"]["capture"],
    RefusedFigures: lambda body: body["pipelines"]["bridge"]["refused"][0],
    SchemaChangeFigures: lambda body: body["schema_findings"][0],
    SlotFigures: lambda body: body["source"],
    SnapshotFigures: lambda body: body["snapshots"][0],
}

_SUFFIXES = {"counter": "_total", "histogram": "_bucket"}


@pytest.fixture(scope="module")
def samples() -> dict[str, set[tuple[tuple[tuple[str, str], ...], float]]]:
    body, _ = exposition(lambda: SYSTEM)
    found: dict[str, set[tuple[tuple[tuple[str, str], ...], float]]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, set()).add((labels, sample.value))
    return found


@pytest.fixture(scope="module")
def body() -> dict[str, Any]:
    return status_document(SYSTEM, config.Config())


def test_every_class_of_figures_is_listed_here() -> None:
    declared = {
        value
        for module in (figures, bridge, creek, health, kept, replica, schema_changes)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Figures) and not name.startswith("_")
    }
    assert declared == {*KINDS, SystemFigures, Figures}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described(kind: type[Figures]) -> None:
    described = figures_of(kind)
    assert set(described) == {field.name for field in fields(kind)}
    assert all(figure.description for figure in described.values())


@pytest.mark.parametrize("kind", list(SECTIONS))
def test_every_field_is_in_status(kind: type[Figures], body: dict[str, Any]) -> None:
    section = SECTIONS[kind](body)
    assert {field.name for field in fields(kind)} <= set(section)


@pytest.mark.parametrize("kind", [*KINDS, SystemFigures])
def test_every_metric_is_in_the_exposition(kind: type[Figures], samples: dict[str, Any]) -> None:
    for figure in figures_of(kind).values():
        for metric in figure.metrics:
            assert metric.name + _SUFFIXES.get(metric.kind, "") in samples


def test_how_values_become_samples(samples: dict[str, Any]) -> None:
    pipeline = ("pipeline", "bridge")
    assert samples["tailrace_info"] == {((("version", "1.2.3"),), 1)}
    assert samples["bridge_last_ack_lsn"] == {((), 16)}
    assert samples["bridge_connected"] == {((), 1)}
    assert samples["tailrace_process_state"] == {
        ((("process", "capture"), ("state", "streaming")), 1)
    }
    assert samples["tailrace_pipeline_up"] == {((pipeline,), 1)}
    assert samples["tailrace_refused_destination"] == {
        ((("code", "POISONED"), ("destination", "orders"), pipeline), 1)
    }
    assert samples["tailrace_batch_seconds"] == {((pipeline,), 0.0815)}
    assert samples["tailrace_latency_seconds"] == {
        ((pipeline, ("quantile", "0.5")), 0.1),
        ((pipeline, ("quantile", "0.99")), 0.25),
    }
    assert samples["tailrace_captured_last_commit_timestamp_seconds"] == {((), NOON.timestamp())}
    assert samples["tailrace_backfill_failed"] == {((pipeline, ("table", "public.t")), 1)}
    check = (("check", "disk"), ("state", "warning"), ("subject", "log"))
    assert samples["tailrace_health_check"] == {(check, 1)}
    assert samples["tailrace_alerts_firing"] == {((), 1)}
    assert samples["tailrace_schema_findings_total"] == {
        ((("kind", "column-default"), pipeline), 2)
    }


def test_metrics_of_creeks_producer(samples: dict[str, Any]) -> None:
    """Under Creek's names, without `_total`."""
    assert samples["creek_producer_lsn"] == {((), 16)}
    assert samples["creek_producer_pg_behind_bytes"] == {((), 1)}
    assert samples["creek_producer_pg_behind_time"] == {((), 100)}
    assert samples["creek_producer_wal_subscriptions"] == {((), 3)}
    labels = "creek_pg_source", "creek_producer_pg_op", "creek_stream_type"
    assert samples["creek_producer_pg_reads"] == {
        (tuple(zip(labels, ("", "", "wal"), strict=True)), 0),
        (tuple(zip(labels, ("public.t", "r", "snap"), strict=True)), 7),
    }
    body, _ = exposition(lambda: SystemFigures(pipelines=(PipelineFigures(shape="bridge"),)))
    assert b"creek_" not in body


def test_metric_names_are_declared_once() -> None:
    names: dict[str, type[Figures]] = {}
    for kind in [*KINDS, SystemFigures]:
        for figure in figures_of(kind).values():
            for metric in figure.metrics:
                assert names.setdefault(metric.name, kind) is kind


def test_every_metric_is_in_the_reference() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/http.md").read_text()
    documented = set(_documented(page))
    for kind in [*KINDS, SystemFigures]:
        for figure in figures_of(kind).values():
            for metric in figure.metrics:
                name = metric.name + ("_total" if metric.kind == "counter" else "")
                assert name in documented


def _documented(page: str) -> Iterator[str]:
    """The metric names of a page: `a_{b,c}_total`, `a_b{label}`, and `_c` after `a_b`."""
    before = ""
    for span in re.findall(r"`([a-z_{},]+)`", page):
        name = before.rpartition("_")[0] + span if span.startswith("_") else span
        before = name.partition("{")[0] if not span.startswith("_") else before
        yield name.partition("{")[0]
        for choice in re.findall(r"\{([a-z_,]+)\}", name):
            for word in choice.split(","):
                yield name.replace(f"{{{choice}}}", word).partition("{")[0]


def test_a_document_has_fields_and_properties() -> None:
    shown = document(SnapshotFigures(rows=500, seconds=10.0, share=0.25, state="running"))
    assert (shown["rows"], shown["rows_per_s"], shown["eta_s"]) == (500, 50, 30)
    assert document(PipelineFigures(state="running"))["running"] is True


def test_a_nested_document() -> None:
    assert document(SYSTEM)["pipelines"][0]["name"] == "bridge"
    assert document(SYSTEM)["log"]["bytes"] == 4


def test_a_recorder_replaces_its_figures() -> None:
    recorder = Recorder(CaptureFigures())
    before = recorder.figures
    recorder.add(changes=2, transactions=1)
    recorder.set(connected=True)
    assert (before.changes, before.connected) == (0, False)
    assert (recorder.figures.changes, recorder.figures.connected) == (2, True)


def test_a_recorder_refuses_an_unknown_figure() -> None:
    recorder = Recorder(CaptureFigures())
    with pytest.raises(TypeError):
        recorder.set(chnages=1)
    with pytest.raises(AttributeError):
        recorder.add(chnages=1)


@pytest.mark.parametrize(
    ("shown", "rate", "eta"),
    [
        (SnapshotFigures(state="queued"), None, None),
        (SnapshotFigures(state="running", rows=10, seconds=2.0, share=0.5), 5, 2),
        (SnapshotFigures(state="complete", rows=10, seconds=2.0, share=1.0), 5, None),
        (BackfillFigures(state="running", rows=0, seconds=2.0), 0, None),
    ],
)
def test_rates_and_estimates(
    shown: SnapshotFigures | BackfillFigures, rate: float | None, eta: float | None
) -> None:
    assert (shown.rows_per_s, shown.eta_s) == (rate, eta)
