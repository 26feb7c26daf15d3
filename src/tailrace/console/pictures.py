"""Which boxes and which charts the pages show, made of their documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tailrace.console import drawing
from tailrace.console.chart import Line
from tailrace.console.drawing import Box, Branch, Tone
from tailrace.console.numbers import UNKNOWN, milliseconds, per_second, seconds, size

if TYPE_CHECKING:
    from tailrace.console.page import Document

_MAX_BRANCHES = 12
_TONES: dict[str, Tone] = {"running": "good", "paused": "quiet", "starting": "quiet"}
_RATE = "rate(tailrace_events_total)"

Graph = tuple[str, list[Line], str]
"""Title, lines and format."""


def path_of(document: Document) -> dict[str, Any]:
    """The drawing of the overview. Pipelines with a problem come first if there are too many."""
    pipelines = document["pipelines"]
    shown = pipelines
    if len(pipelines) > _MAX_BRANCHES:
        shown = sorted(pipelines, key=lambda each: each["state"] == "running")[:_MAX_BRANCHES]
    branches = [_branch(each) for each in shown]
    trunk = [_source(document), _capture(document), _log(document)]
    flows = bool(document["capture"]["changes_per_s"])
    return {
        "wide": drawing.wide(trunk, branches, flows=flows),
        "tall": drawing.tall(trunk, branches, flows=flows),
        "more": len(pipelines) - len(shown),
    }


def _source(document: Document) -> Box:
    source = document["source"]
    tables = UNKNOWN if source["tables"] is None else f"{source['tables']:,}"
    return Box(
        title="PostgreSQL",
        lines=(f"{tables} tables", f"keeps {_of(size, source['kept_wal_bytes'])}"),
        tone="error" if source["error"] else "good" if source["active"] else "quiet",
        link="/console/tables",
    )


def _capture(document: Document) -> Box:
    capture = document["capture"]
    state = capture["state"] or "down"
    return Box(
        title="Capture",
        lines=(state, _of(per_second, capture["changes_per_s"])),
        tone="good" if capture["connected"] else "error" if state.isupper() else "warning",
        link="/console/doctor",
    )


def _log(document: Document) -> Box:
    log = document["log"]
    return Box(
        title="Log",
        lines=(
            "unreadable" if log["error"] else _of(size, log["bytes"]),
            f"{log['segments'] or 0:,} segments",
        ),
        tone="error" if log["error"] else "good",
        link="/console/log",
    )


def _branch(pipeline: Document) -> Branch:
    rate, state = pipeline["rate_per_s"], pipeline["state"]
    lag = f"lag {_of(seconds, pipeline['lag_s'])}, {_of(size, pipeline['lag_bytes'])}"
    tone = _TONES.get(state, "warning" if state == "retrying" else "error")
    latency = (
        f"p50 {_of(milliseconds, pipeline['latency_ms_p50'])}, "
        f"p99 {_of(milliseconds, pipeline['latency_ms_p99'])}"
    )
    link = f"/console/pipelines/{quote(pipeline['name'], safe='')}"
    running = f"{state}, {_of(per_second, rate)}" if state == "running" else state
    return Branch(
        pipeline=Box(title=pipeline["name"], lines=(running, lag), tone=tone, link=link),
        sink=Box(
            title=pipeline["sink"] or "removed",
            lines=(latency, f"{pipeline['parked_messages'] or 0:,} parked"),
            tone="warning" if pipeline["parked_messages"] else tone,
            link=f"/console/parked/{quote(pipeline['name'], safe='')}",
        ),
        flows=bool(rate),
    )


def overview_graphs(document: Document) -> list[Graph]:
    """The trends of the whole system."""
    trends = document["trends"]
    captured = "rate(tailrace_captured_changes_total)"
    p50, p99 = (f'tailrace_latency_seconds{{quantile="{each}"}}' for each in ("0.5", "0.99"))
    return [
        (
            "Throughput",
            [
                Line(name="delivered", metric=_RATE, points=trends["delivered_per_s"]),
                Line(name="captured", metric=captured, points=trends["captured_per_s"]),
            ],
            "rate",
        ),
        _single("Lag, worst pipeline", "tailrace_lag_seconds", trends["lag_s"], "seconds"),
        (
            "Latency, worst pipeline",
            [
                Line(name="p50", metric=p50, points=trends["latency_ms_p50"]),
                Line(name="p99", metric=p99, points=trends["latency_ms_p99"]),
            ],
            "milliseconds",
        ),
        _single("Lag in bytes", "tailrace_lag_bytes", trends["lag_bytes"], "size"),
        _single("Log", "tailrace_log_bytes", trends["log_bytes"], "size"),
        _single(
            "WAL kept by PostgreSQL",
            "tailrace_slot_kept_wal_bytes",
            trends["kept_wal_bytes"],
            "size",
        ),
    ]


def pipeline_graphs(document: Document) -> list[Graph]:
    """The trends of a pipeline."""
    trends = document["trends"]
    p50, p99 = (f'tailrace_latency_seconds{{quantile="{each}"}}' for each in ("0.5", "0.99"))
    return [
        _single("Throughput", _RATE, trends["events"], "rate"),
        _single("Lag", "tailrace_lag_seconds", trends["lag_s"], "seconds"),
        (
            "Latency",
            [
                Line(name="p50", metric=p50, points=trends["p50"]),
                Line(name="p99", metric=p99, points=trends["p99"]),
            ],
            "milliseconds",
        ),
        _single("Lag in bytes", "tailrace_lag_bytes", trends["lag_bytes"], "size"),
    ]


def _single(title: str, metric: str, points: Any, form: str) -> Graph:
    return title, [Line(name="", metric=metric, points=points)], form


def _of(text: Any, value: float | None) -> str:
    return UNKNOWN if value is None else str(text(value))
