"""The overview as text: the path of a change from the source to each sink, and what is wrong.

Pure: a document of `/api/v1/overview` in, lines out. Names and error texts are untrusted: they are
never read as markup, and control characters are escaped.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from rich.text import Text

from tailrace.cli.log.render import escape
from tailrace.console.numbers import UNKNOWN, count, milliseconds, per_second, seconds, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.console.page import Document

_GOOD = frozenset({"healthy", "streaming", "running"})
_QUIET = frozenset({"paused", "starting", "stopped"})
_WARNING = frozenset({"warning", "retrying", "reconnecting"})
_COLUMNS = (
    ("state", 8), ("rate", 11), ("lag", 6), ("bytes", 9), ("p50", 6), ("p99", 6), ("parked", 9),
)  # fmt: skip
_LABEL = 9
_MAX_PROBLEMS = 20
_ARROW = "\N{RIGHTWARDS ARROW}"


def lines(document: Document, *, width: int = 80, note: str = "") -> Iterator[Text]:
    """The overview. `note` is a remark about where it comes from."""
    yield _head(document)
    yield from (Text(line, style="dim") for line in textwrap.wrap(note, width))
    yield Text()
    for label, word, facts in _trunk(document):
        part = Text.assemble(f"{label:{_LABEL}}", (f"{word:13}", _style(word)), " ")
        room = width - len(part.plain)
        for number, line in enumerate(textwrap.wrap(facts, room) or [""]):
            yield part + line if not number else Text(" " * len(part.plain) + line)
    yield Text()
    yield from _pipelines(document["pipelines"], width)
    yield from _problems(document["problems"], width)


def _head(document: Document) -> Text:
    state, found = document["state"], len(document["problems"])
    words = f", {found} problem{'s' if found > 1 else ''}" if found else ""
    up = seconds(document["uptime_s"]) if document["uptime_s"] >= 60 else "less than a minute"
    return Text.assemble(
        (state, f"bold {_style(state)}"),
        f"{words} · up {up} · tailrace {escape(document['version'])}",
    )


def _trunk(document: Document) -> Iterator[tuple[str, str, str]]:
    """Label, state and figures of what all pipelines share."""
    source, capture, log = (document[part] for part in ("source", "capture", "log"))
    kept, lag = (_of(size, source[each]) for each in ("kept_wal_bytes", "lag_bytes"))
    tables = f"slot {escape(source['slot'])}, {_of(count, source['tables'])} tables"
    state = "error" if source["error"] else "active" if source["active"] else UNKNOWN
    yield "source", state, f"{tables}, keeps {kept} of WAL, {lag} not acknowledged"
    rate, changes = _of(per_second, capture["changes_per_s"]), count(capture["changes"])
    captured = f"{rate}, {changes} changes in {count(capture['transactions'])} transactions"
    yield "capture", escape(capture["state"]) or "down", captured
    place = f"{_of(size, log['bytes'])} in {_of(count, log['segments'])} segments"
    readable = f"{place}, ends at {escape(log['end'])}"
    yield "log", "error" if log["error"] else "readable", escape(log["error"]) or readable


def _pipelines(rows: list[Any], width: int) -> Iterator[Text]:
    if not rows:
        yield Text("no pipelines are configured")
        return
    sizes = [cells for _, cells in _COLUMNS]
    room = width - sum(sizes) - len(sizes)
    titles = [f"{escape(each['name'])} {_ARROW} {escape(each['sink']) or '?'}" for each in rows]
    first = max(len("pipeline"), *(min(len(title), room) for title in titles))
    heads = " ".join(f"{name:{'<' if name == 'state' else '>'}{cells}}" for name, cells in _COLUMNS)
    yield Text(f"{'pipeline':{first}} {heads}", style="bold")
    for title, each in zip(titles, rows, strict=True):
        state, *figures = _cells(each)
        cells = " ".join(f"{cell:>{wide}}" for cell, wide in zip(figures, sizes[1:], strict=True))
        yield Text.assemble(
            f"{_short(title, room):{first}} ",
            (f"{state:{sizes[0]}}", _style(each["state"])),
            f" {cells}",
        )


def _cells(pipeline: Document) -> tuple[str, ...]:
    return (
        _short(escape(pipeline["state"]), _COLUMNS[0][1]),
        _of(per_second, pipeline["rate_per_s"]),
        _brief(_of(seconds, pipeline["lag_s"])),
        _of(size, pipeline["lag_bytes"]),
        _brief(_of(milliseconds, pipeline["latency_ms_p50"])),
        _brief(_of(milliseconds, pipeline["latency_ms_p99"])),
        _of(count, pipeline["parked_messages"]),
    )


def _problems(found: list[Any], width: int) -> Iterator[Text]:
    for each in found[:_MAX_PROBLEMS]:
        yield Text()
        severity, code = each["severity"], each["code"]
        text = each["text"] + (f" ({code})" if code and code not in each["text"] else "")
        indent = " " * _LABEL
        for number, line in enumerate(_wrapped(text, width)):
            label = (f"{severity:{_LABEL}}", _style(severity)) if not number else (indent, "")
            yield Text.assemble(label, line)
        for line in _wrapped(each["detail"], width):
            yield Text(indent + line, style="dim")
        for line in _wrapped(f"fix: {each['hint']}" if each["hint"] else "", width):
            yield Text(indent + line)
    if len(found) > _MAX_PROBLEMS:
        yield Text(f"\nand {len(found) - _MAX_PROBLEMS} more: --json has all")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(escape(text), width - _LABEL)


def _of(form: Callable[[float], str], value: float | None) -> str:
    return UNKNOWN if value is None else form(value)


def _brief(duration: str) -> str:
    """A duration in its largest unit.

    >>> _brief("1 min 15 s")
    '1 min'
    """
    return " ".join(duration.split()[:2])


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _style(word: str) -> str:
    if word in _GOOD:
        return "green"
    if word in _WARNING:
        return "yellow"
    return "" if word in _QUIET or word in (UNKNOWN, "active", "readable") else "red"
