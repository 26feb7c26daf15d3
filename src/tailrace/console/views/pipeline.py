"""How is a pipeline? State, position, throughput, latency, errors with hints, and its settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailrace import audit
from tailrace.config.document import masked
from tailrace.console.views.overview import pipeline_document, span_of
from tailrace.control import ControlFile
from tailrace.errors import ConfigError
from tailrace.log.format.segment import list_segments
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.observe.figure import document
from tailrace.run import trace
from tailrace.run.problems import hint_of, problems
from tailrace.run.query import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.page import Document
    from tailrace.console.system import System

_ENTRIES = 10
_TRIED, _MOST_TRIED = 5, 20
_MOST_CHARACTERS = 200


def pipelines(system: System, query: Mapping[str, str]) -> Document:
    """All pipelines."""
    del query
    return {
        "pipelines": [
            {
                **pipeline_document(system, each),
                "control": asdict(ControlFile(system.config.data, each.name).read()),
            }
            for each in system.figures().pipelines
        ]
    }


def pipeline(system: System, query: Mapping[str, str]) -> Document:
    """One pipeline."""
    name = query["pipeline"]
    figures = next((each for each in system.figures().pipelines if each.name == name), None)
    if figures is None:
        system.pipeline(name)
        raise ConfigError(f"there is no pipeline {name!r}")
    control = ControlFile(system.config.data, name)
    moved = control.moved()
    span = span_of(query)
    kinds = ("events", "lag_s", "lag_bytes", "p50", "p99")
    configured = system.config.pipelines.get(name)
    return {
        "pipeline": pipeline_document(system, figures),
        "hint": hint_of(figures.code) if figures.code else "",
        "problems": [
            asdict(each)
            for each in problems(system.figures(), system.config.alerts)
            if each.pipeline == name
        ],
        "control": {**asdict(control.read()), "moved": moved.moves, "refusal": moved.refusal},
        "backfills": [
            document(each) for each in system.figures().backfills if each.pipeline == name
        ],
        "range": span,
        "trends": {kind: system.trends.points(span, f"{kind}:{name}") for kind in kinds},
        "settings": masked(configured) if configured else None,
        "audit": [
            entry
            for entry in audit.latest(system.config.data, limit=500)
            if entry.get("pipeline") == name
        ][:_ENTRIES],
    }


def tried(system: System, query: Mapping[str, str]) -> Document:
    """The messages that a pipeline makes of the last changes, as its sink would receive them."""
    name, table = query["pipeline"], query.get("table", "")
    system.pipeline(name)
    limit = max(number(query, "limit", _TRIED, _MOST_TRIED), 1)
    if len(table) > _MOST_CHARACTERS:
        raise ConfigError(f"table must have at most {_MOST_CHARACTERS} characters")
    found: Document = {"messages": [], "searched": 0, "why": ""}
    if list_segments(LocalStore(system.config.log.path)):
        log = Log.open(system.config.log.path)
        found = trace.tried(system.config, log, name, table=table, limit=limit)
    return {"pipeline": name, "table": table, "limit": limit, **found}


def summary(found: Mapping[str, Any]) -> str:
    """The state of a pipeline in a few words."""
    return " ".join(filter(None, (found["state"], found["code"])))
