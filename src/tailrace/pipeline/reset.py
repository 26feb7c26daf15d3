"""Resets: a pipeline begins again at another position of the log.

The way out of DIVERGED, and the way to deliver changes again or to skip some. The pipeline must not
run: a reset holds the lock of the data folder, a move is made by the pipeline's own runner between
two queries. Both start a new history (`tailrace.checkpoint`), so no sink takes messages of the
earlier one for messages that are already delivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - pydantic reads it
from typing import TYPE_CHECKING, Literal

import structlog

from tailrace import checkpoint
from tailrace.backfill.order import FINISHED, Record
from tailrace.backfill.queue import folder_of
from tailrace.backfill.spool import Spool, spool_of
from tailrace.checkpoint import StartRecord
from tailrace.errors import ConfigError, CorruptError, PositionLostError
from tailrace.log import retention
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.position import Position
from tailrace.postgres.joining import JOINED
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.control import MoveAction
    from tailrace.log.start import Start

_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a reset will do."""

    pipeline: str
    before: StartRecord | None
    """The start record; None if the pipeline has never started."""
    delivered: Position | None
    """The position that the pipeline has reached; None if it is not one of this log."""
    after: StartRecord
    repeated: int = 0
    """Changes that are delivered again."""
    skipped: int = 0
    """Changes that are not delivered."""
    ahead: int = 0
    """Changes that the log holds after the new position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetEntry:
    """A reset, as the data folder records it."""

    pipeline: str
    at: datetime
    by: str
    history_before: str
    delivered: str
    history: str
    start: str


def plan(config: Config, pipeline: str, start: Start | Position) -> Plan:
    """What a reset to `start`, or to right after a position, will deliver again or skip. Changes
    nothing."""
    if pipeline not in config.pipelines:
        raise ConfigError(
            f"there is no pipeline {pipeline!r}",
            hint=f"The settings have: {', '.join(sorted(config.pipelines)) or 'no pipelines'}.",
        )
    log = Log.open(config.log.path)
    folder = checkpoint.folder_of(config.data, pipeline)
    before = _start_before(folder)
    position = _held(log, start) if isinstance(start, Position) else log.resolve(start)
    delivered = None
    if before is not None and before.log_id == log.id:
        delivered = checkpoint.delivered(folder) or before.position
    if delivered is not None and delivered.lsn > log.end().end_lsn:
        delivered = None
    return Plan(
        pipeline=pipeline,
        before=before,
        delivered=delivered,
        after=StartRecord.after_reset(log.id, position),
        repeated=0 if delivered is None else _changes(log, position, delivered),
        skipped=0 if delivered is None else _changes(log, delivered, position),
        ahead=_changes(log, position, log.end().position),
    )


def _start_before(folder: Path) -> StartRecord | None:
    """The present start record. A reset replaces a damaged one, as if there were none."""
    try:
        return checkpoint.read_start(folder)
    except CorruptError:
        return None


def _held(log: Log, position: Position) -> Position:
    """The position; raises an error if the log does not have it."""
    if position < log.earliest():
        raise PositionLostError(
            f"{position} is no longer in the log, which begins after {log.earliest()}"
        )
    if position > log.end().position:
        raise ConfigError(f"the log ends at {log.end().position}, before {position}")
    return position


def _changes(log: Log, after: Position, upto: Position) -> int:
    """How many changes the log holds in a range."""
    # Retention may have removed what was delivered long ago.
    after = max(after, log.earliest())
    if after >= upto:
        return 0
    return log.extent(after, rows=_UNLIMITED, size=_UNLIMITED, upto=upto).rows


def carry_out(config: Config, planned: Plan, *, by: str, now: datetime) -> ResetEntry:
    """Reset a pipeline that does not run."""
    return _carry_out(config, planned, by=by, now=now, backfills=True)


def check_move(config: Config, planned: Plan, action: MoveAction | Literal[""]) -> None:
    """Raise ConfigError unless a pipeline may move along the log while everything else runs.

    It delivers while a move is confirmed: what was a skip then may be a rewind now.
    """
    name, to = planned.pipeline, planned.after.position
    if planned.repeated and action == "skip":
        raise ConfigError(
            f"{name} is past {to}", hint="tailrace pipeline rewind NAME --to POSITION"
        )
    if planned.skipped and action == "rewind":
        raise ConfigError(f"{name} has not come to {to} yet", hint="tailrace pipeline skip")
    stop = f"Stop `tailrace run`, then: tailrace reset {planned.pipeline} --from POSITION"
    if planned.before is not None and planned.before.log_id != planned.after.log_id:
        raise ConfigError("the checkpoint belongs to another log", hint=stop)
    records = Record.load(folder_of(config, planned.pipeline)).values()
    unfinished = [record.table for record in records if record.state not in FINISHED]
    if unfinished or Spool(spool_of(config.data, planned.pipeline)).numbers():
        raise ConfigError(
            f"a backfill of {', '.join(map(str, unfinished)) or 'a table'} is not finished",
            hint=f"Wait for it or cancel it. Or: {stop}",
        )


def move(
    config: Config,
    pipeline: str,
    to: Position,
    *,
    action: MoveAction | Literal[""] = "",
    by: str,
    now: datetime,
) -> ResetEntry:
    """Continue elsewhere in the log: for the runner of a pipeline, whose query has ended."""
    planned = plan(config, pipeline, to)
    check_move(config, planned, action)
    return _carry_out(config, planned, by=by, now=now, backfills=False)


def _carry_out(
    config: Config, planned: Plan, *, by: str, now: datetime, backfills: bool
) -> ResetEntry:
    pipeline, after = planned.pipeline, planned.after
    entry = ResetEntry(
        pipeline=pipeline,
        at=now,
        by=by,
        history_before=planned.before.history if planned.before else "",
        delivered=str(planned.delivered or ""),
        history=after.history,
        start=str(after.position),
    )
    _record(config.data, entry)
    store = LocalStore(config.log.path)
    retention.pin(store, pipeline, after.position, now=now.timestamp())
    if backfills:
        retention.unpin(store, retention.backfill_pin(pipeline))
        # Before the checkpoint: pages of the earlier position must not be found after it.
        _restart_backfills(config, pipeline)
    checkpoint.reset(checkpoint.folder_of(config.data, pipeline), after)
    structlog.get_logger().info(
        "pipeline.reset", pipeline=pipeline, by=entry.by, start=entry.start, history=entry.history
    )
    return entry


def _record(data: Path, entry: ResetEntry) -> None:
    file = StateFile(data / "resets.json", list[ResetEntry])
    with file.exclusive():
        file.write([*(file.read() or []), entry])


def _restart_backfills(config: Config, pipeline: str) -> None:
    """Their pages were read for the earlier history."""
    spool, folder = Spool(spool_of(config.data, pipeline)), folder_of(config, pipeline)
    for number in spool.numbers():
        spool.remove(number)
    for joined in (config.data / "snapshots" / pipeline, folder):
        # After a restore a table may be published again under the same OID: wait for its writers.
        (joined / JOINED).unlink(missing_ok=True)
    for record in Record.load(folder).values():
        if record.state not in FINISHED:
            record.restart()
            record.save(folder)
