"""Is everything well? The path of a change with its rates, its lag, and what is wrong."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from tailrace.observe.figure import document
from tailrace.run.problems import Problem, problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.page import Document
    from tailrace.console.system import System
    from tailrace.console.trends import Span
    from tailrace.observe.figures import PipelineFigures, SystemFigures

_TRENDS_S = 2.0


def overview(system: System, query: Mapping[str, str]) -> Document:
    """The document of the overview."""
    figures = system.figures()
    found = all_problems(system, figures)
    return {
        "state": state_of(found),
        "version": figures.version,
        "uptime_s": figures.uptime_s,
        "problems": [asdict(each) for each in found],
        "watchdog": figures.watch.state if figures.watch else None,
        "source": {
            "slot": system.config.source.slot,
            "publication": system.config.source.publication,
            **document(figures.slot),
        },
        "capture": {
            **document(figures.capture),
            "changes_per_s": system.trends.rates.get("captured"),
        },
        "log": document(figures.log),
        "processes": [document(each) for each in figures.processes],
        "pipelines": [pipeline_document(system, each) for each in figures.pipelines],
        "range": span_of(query),
        "trends": _trends(system, span_of(query), [each.name for each in figures.pipelines]),
    }


def all_problems(system: System, figures: SystemFigures) -> list[Problem]:
    """The problems of the system, those of this process included."""
    services = [
        Problem(
            text=f"service {name}: failed, will be restarted",
            hint="The log lines of `tailrace serve` have the reason.",
        )
        for name in system.failing()
    ]
    if (unreadable := system.access.tokens.problem) is not None:
        services.append(
            Problem(
                text="no token of `tailrace token` is accepted", code=unreadable.code,
                detail=str(unreadable), hint=unreadable.hint,
            )
        )  # fmt: skip
    found = problems(figures, system.config.alerts)
    return sorted([*found, *services], key=lambda each: each.severity)


def state_of(found: list[Problem]) -> str:
    """healthy, warning or error."""
    return found[0].severity if found else "healthy"


def pipeline_document(system: System, figures: PipelineFigures) -> dict[str, Any]:
    """The figures of a pipeline, with its sink and its present rate."""
    configured = system.config.pipelines.get(figures.name)
    return {
        **document(figures),
        "sink": configured.sink.type if configured else "",
        "rate_per_s": system.trends.rates.get(f"events:{figures.name}"),
    }


def span_of(query: Mapping[str, str]) -> Span:
    """The span of the charts: an hour unless a day is asked for."""
    return "day" if query.get("range") == "day" else "hour"


def _trends(system: System, span: Span, names: list[str]) -> dict[str, Any]:
    trends = system.trends

    def of(kind: str, how: Literal["worst", "total"]) -> list[tuple[float, float | None]]:
        return trends.merged(span, [f"{kind}:{name}" for name in names], how)

    def read() -> dict[str, Any]:
        return {
            "captured_per_s": trends.points(span, "captured"),
            "delivered_per_s": of("events", "total"),
            "lag_s": of("lag_s", "worst"),
            "lag_bytes": of("lag_bytes", "worst"),
            "latency_ms_p50": of("p50", "worst"),
            "latency_ms_p99": of("p99", "worst"),
            "log_bytes": trends.points(span, "log_bytes"),
            "kept_wal_bytes": trends.points(span, "kept_wal_bytes"),
        }

    return system.kept(("trends", span), _TRENDS_S, read)
