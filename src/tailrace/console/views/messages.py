"""Which changes has capture appended to the log, and what has become of one of them?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.change import Op
from tailrace.errors import ParameterError
from tailrace.log.choice import Choice
from tailrace.log.documents import to_json
from tailrace.log.format import mark as marks
from tailrace.log.format.segment import list_segments
from tailrace.log.newest import MAX_ROWS, Newest, newest
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.position import Position
from tailrace.run.query import number
from tailrace.run.trace import encoded, trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace.change import Change
    from tailrace.console.page import Document
    from tailrace.console.system import System

_LIMIT, _MOST = 50, 500
_SHOWN_CHARACTERS, _MOST_CHARACTERS = 200, 64 << 10
"""Of a value: in the list, and on the page of the change."""
_OPS = tuple(op.value for op in Op if op is not Op.READ)
_MAX_PATTERNS, _MAX_PATTERN = 20, 200
"""Of tables: each is compared with the table of each change that is read."""


def messages(system: System, query: Mapping[str, str]) -> Document:
    """A page of the changes that match a filter, the newest first."""
    limit = number(query, "limit", _LIMIT, _MOST)
    choice = Choice(
        tables=_patterns(query.get("table", "")),
        op=query.get("op", ""),
        key=query.get("key", ""),
        text=query.get("text", ""),
    )
    if choice.op and choice.op not in _OPS:
        raise ParameterError(f"op must be one of {', '.join(_OPS)}, got {choice.op!r}")
    before = position_of(query["before"]) if query.get("before") else None
    page = _page(system, choice, max(limit, 1), before)
    return {
        "messages": [_listed(change) for change in page.changes],
        "older": page.older.event_id if page.older else None,
        "before": before.event_id if before else None,
        "searched": page.rows,
        "searched_at_most": MAX_ROWS,
        "filter": {name: query[name] for name in ("table", "op", "key", "text") if query.get(name)},
        "ops": list(_OPS),
    }


def _patterns(text: str) -> tuple[str, ...]:
    found = tuple(filter(None, (part.strip() for part in text.split(","))))
    if len(found) > _MAX_PATTERNS or any(len(each) > _MAX_PATTERN for each in found):
        raise ParameterError(
            f"table must be at most {_MAX_PATTERNS} names of at most {_MAX_PATTERN} characters"
        )
    return found


def end(system: System) -> object:
    """How far the log goes: a filter that matches little need not read the same again."""
    store = LocalStore(system.config.log.path)
    return marks.peek(store), marks.peek(store, marks.VISIBLE)


def _page(system: System, choice: Choice, limit: int, before: Position | None) -> Newest:
    """What the log has; nothing before capture has created it."""
    store = LocalStore(system.config.log.path)
    if not list_segments(store):
        return Newest(changes=[], older=None, rows=0)
    return newest(Log(store), choice.takes, limit=limit, before=before)


def message(system: System, query: Mapping[str, str]) -> Document:
    """One change: where it is, which pipelines match it, and up to where they have delivered."""
    position = position_of(query["message"])
    log = Log.open(system.config.log.path)
    found = trace(system.config, log, position, system.figures().pipelines)
    shown: dict[str, Any] = to_json(found.change)
    cut = _cut(shown, _MOST_CHARACTERS)
    wanted = query.get("encode", "")
    return {
        "change": shown,
        "cells": list(_cells(shown)),
        "cut": cut,
        "place": found.place,
        "deliveries": found.deliveries,
        "encode": wanted,
        "encoded": encoded(system.config, log, position, wanted) if wanted else None,
    }


def position_of(text: str) -> Position:
    """A position from an event id, as it is in addresses. Raises ParameterError."""
    try:
        return Position.parse_event_id(text)
    except ValueError as error:
        raise ParameterError(
            str(error), hint="Take it from /console/messages or from the id of an event."
        ) from error


def _listed(change: Change) -> Document:
    """A change in a list, with the values that say most."""
    shown: dict[str, Any] = to_json(change)
    cut = _cut(shown, _SHOWN_CHARACTERS)
    return {**shown, "cut": cut}


def _cut(shown: Document, most: int) -> list[str]:
    """Shorten long values. Returns the names of their columns."""
    names = set()
    for row in (shown["key"], shown["before"], shown["after"]):
        for name, value in (row or {}).items():
            if value is not None and len(value) > most:
                row[name] = value[:most]
                names.add(name)
    if len(shown.get("content", "")) > most:
        shown["content"] = shown["content"][:most]
        names.add("content")
    return sorted(names)


def _cells(shown: Document) -> Iterator[Document]:
    """The columns of a change, before and after it."""
    before, after = shown["before"] or {}, shown["after"] or {}
    for name in dict.fromkeys([*before, *after, *shown["unchanged"]]):
        yield {
            "name": name,
            "key": name in (shown["key"] or {}),
            "before": before.get(name) if name in before else None,
            "known": name in before,
            "after": after.get(name),
            "unchanged": name in shown["unchanged"],
            "sent": name in after,
            "changed": name in before and name in after and before[name] != after[name],
        }
