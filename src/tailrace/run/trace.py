"""What has become of one change: its place in the log, and each pipeline's part in it.

The log does not record when capture received a change. It has the time of the commit, and a change
that readers see is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace import checkpoint
from tailrace.errors import ConfigError, TailraceError
from tailrace.log.choice import of_tables
from tailrace.log.newest import newest, place_of
from tailrace.parking import control
from tailrace.parking.control import text_field, time_text
from tailrace.tables import WATCHDOG, Prefixes, Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.change import Change
    from tailrace.checkpoint import StartRecord
    from tailrace.config import Config, Pipeline
    from tailrace.log.newest import Place
    from tailrace.log.reader import Log
    from tailrace.observe.figures import PipelineFigures
    from tailrace.position import Position

MOST_BYTES = 64 << 10
"""Of a payload that is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A change, and documents of its place and its deliveries."""

    change: Change
    place: dict[str, Any]
    deliveries: list[dict[str, Any]]


def trace(
    config: Config, log: Log, position: Position, figures: Sequence[PipelineFigures]
) -> Trace:
    """Find a change. Raises ConfigError if the log does not hold it."""
    place, change = place_of(log, position)
    known = {each.name: each for each in figures}
    deliveries = [
        {"pipeline": name, **_delivery(config, log, name, change, known.get(name))}
        for name in config.pipelines
    ]
    return Trace(change=change, place=_place(place), deliveries=deliveries)


def _place(place: Place) -> dict[str, Any]:
    entry = place.entry
    return {
        "segment": place.segment.file,
        "offset": place.offset,
        "bytes": place.bytes,
        "kind": entry.kind.name.lower(),
        "first": str(entry.first),
        "last": str(entry.last),
        "changes": entry.changes,
        "transactions": entry.transactions,
        "end_lsn": str(entry.end_lsn),
        "epoch": entry.epoch,
    }


def _delivery(
    config: Config, log: Log, name: str, change: Change, figures: PipelineFigures | None
) -> dict[str, Any]:
    """What a pipeline does with a change, and why."""
    pipeline = config.pipelines[name]
    refusal = why_not(pipeline, change)
    found: dict[str, Any] = {
        "sink": pipeline.sink.type,
        "selected": not refusal,
        "where": pipeline.where,
        "position": figures.position if figures else "",
    }
    if refusal:
        return {**found, "state": "not selected", "why": refusal}
    delivery = _state(config, log, name, change.position, figures)
    if delivery["state"] == "delivered" and pipeline.where:
        delivery["why"] = "Unless `where` excludes it, which only Spark evaluates."
    return found | delivery


def why_not(pipeline: Pipeline, change: Change) -> str:
    """Why a pipeline does not read a change; empty if it does."""
    if change.relation is None:
        if change.prefix == WATCHDOG:
            return "It is a heartbeat of the watchdog."
        if Prefixes(pipeline.messages)(change.prefix):
            return ""
        return f"`messages` does not select the prefix {change.prefix}."
    if Tables(pipeline.tables).match(change.relation.namespace, change.relation.name):
        return ""
    return f"`tables` does not select {change.relation.qualified_name}."


def _state(
    config: Config, log: Log, name: str, position: Position, figures: PipelineFigures | None
) -> dict[str, Any]:
    """The state of a delivery, and what is to say about it."""
    folder = checkpoint.folder_of(config.data, name)
    try:
        with control.listing(config, name) as parked:
            message = parked.at(position)
        if message is not None:
            why = f"{message.code}: {message.reason}"
            return {"state": "parked", "why": why, "parked": message.seq}
        start = checkpoint.read_start(folder)
        reached = None if start is None else checkpoint.delivered(folder)
    except TailraceError as error:
        return {"state": "unknown", "why": f"{error.code}: {error}"}
    if start is None:
        return {"state": "not yet", "why": "The pipeline has never run."}
    state, why = _progress(log, start, reached, position, figures)
    return {"state": state, "why": why}


def _progress(
    log: Log,
    start: StartRecord,
    reached: Position | None,
    position: Position,
    figures: PipelineFigures | None,
) -> tuple[str, str]:
    if start.log_id != log.id:
        return "unknown", "The pipeline's checkpoint is of another log."
    if position <= start.position:
        return "not delivered", f"The pipeline began after it, at {start.position}."
    if reached is not None and position <= reached:
        return "delivered", ""
    return "not yet", _why_not_yet(reached or start.position, figures)


def _why_not_yet(reached: Position, figures: PipelineFigures | None) -> str:
    at = f"It has delivered everything up to {reached}."
    if figures is None or figures.state == "running":
        return at
    reason = f"{figures.code}: {figures.message}" if figures.code else figures.state
    return f"The pipeline does not run ({reason}). {at}"


def encoded(config: Config, log: Log, position: Position, name: str) -> dict[str, Any]:
    """The message that a pipeline makes of a change, as `tailrace pipeline try` shows it."""
    if name not in config.pipelines:
        raise ConfigError(f"there is no pipeline {name!r}")
    # It imports PySpark's Python part, 20 MB, which nothing else in this process needs.
    from tailrace.pipeline.preview import message_of  # noqa: PLC0415

    found = message_of(config.pipelines[name], name, log, position)
    if found is None:
        return {"message": None, "why": f"This pipeline needs Spark: tailrace pipeline try {name}"}
    if not found.num_rows:
        return {"message": None, "why": "The pipeline makes no message of this change."}
    return {"why": "", "message": _message(found.to_pylist()[0])}


def _message(row: dict[str, Any]) -> dict[str, Any]:
    payload = row["payload"]
    return {
        "destination": row["destination"].decode("utf-8", "replace"),
        **text_field("key", row["key"]),
        "id": row["id"].decode("utf-8", "replace"),
        "committed_at": time_text(row["committed_at"]),
        "headers": {key.decode(): value.decode() for key, value in row["headers"] or []},
        "bytes": len(payload or b""),
        **text_field("payload", payload if payload is None else payload[:MOST_BYTES]),
    }


def tried(config: Config, log: Log, name: str, *, table: str, limit: int) -> dict[str, Any]:
    """The messages of the last changes that a pipeline reads, the newest first. Sends nothing.

    Looks back over a fixed number of changes, whatever the size of the log.
    """
    pipeline = config.pipelines[name]

    def takes(change: Change) -> bool:
        return not why_not(pipeline, change) and (not table or of_tables(change, (table,)))

    page = newest(log, takes, limit=limit)
    messages, why = [], ""
    for change in page.changes:
        found = encoded(config, log, change.position, name)
        if found["message"] is not None:
            messages.append({"change": change.position.event_id, **found["message"]})
        else:
            why = found["why"]
    return {"messages": messages, "searched": page.rows, "why": "" if messages else why}
