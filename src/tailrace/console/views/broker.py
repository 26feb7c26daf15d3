"""What do Kafka's clients have in the source database, and how far are consumer groups?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.broker.tables.inspection import inspect
from tailrace.console.views.overview import pipeline_document
from tailrace.console.views.source import session
from tailrace.errors import TailraceError
from tailrace.observe.figure import document
from tailrace.shadow.settings import ShadowSink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.page import Document
    from tailrace.console.system import System

FIGURES = "broker"
"""What `System.kept` keeps."""
_TABLES_S = 2.0
_MOST = 1000
"""Partitions, and offsets of groups, in one document."""


def broker(system: System, query: Mapping[str, str]) -> Document:
    """Topics, groups and the broker; what is wrong, if the tables cannot be read."""
    found = system.kept(FIGURES, _TABLES_S, lambda: _read(system))
    topic, group = query.get("topic", ""), query.get("group", "")
    topics = [each for each in found["topics"] if topic in ("", each["name"])]
    groups = [
        {**each, "offsets": [one for one in each["offsets"] if topic in ("", one["topic"])]}
        for each in found["groups"]
        if group in ("", each["name"])
    ]
    if topic:
        groups = [each for each in groups if each["offsets"]]
    shown_topics, shown_groups = _first(topics, "partitions"), _first(groups, "offsets")
    return {
        **found,
        "topics": shown_topics,
        "more_topics": len(topics) - len(shown_topics),
        "groups": shown_groups,
        "more_groups": len(groups) - len(shown_groups),
        "filter": {"topic": topic, "group": group},
        "shadow": _shadow(system),
    }


def _read(system: System) -> Document:
    """The figures. An error is part of the page: it says why there is nothing to show."""
    try:
        with session(system) as connection:
            return {"problem": None, **document(inspect(connection))}
    except TailraceError as error:
        problem = {"code": error.code, "text": str(error), "hint": error.hint}
        nothing: Document = {"serving": None, "stores": [], "topics": [], "groups": []}
        return {"problem": problem, **nothing, "complete": False}


def _first(entries: list[dict[str, Any]], parts: str) -> list[dict[str, Any]]:
    """The first entries that have about as many parts as a document may have."""
    shown, left = [], _MOST
    for each in entries:
        if left <= 0:
            break
        shown.append(each)
        left -= max(len(each[parts]), 1)
    return shown


def _shadow(system: System) -> list[dict[str, Any]]:
    """The pipelines of this run that copy the topics to Kafka."""
    configured = system.config.pipelines
    return [
        pipeline_document(system, each)
        for each in system.figures().pipelines
        if each.name in configured and isinstance(configured[each.name].sink, ShadowSink)
    ]
