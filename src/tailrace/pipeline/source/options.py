"""The options of `format("tailrace")`: parsed and checked once, with their help texts."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError
from tailrace.log.reader import Earliest, Start
from tailrace.log.start import parse_start
from tailrace.position import Position
from tailrace.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping

HELP = {
    "log": "Folder of the log to read.",
    "dsn": "Capture from this PostgreSQL inside the query, without a capture daemon.",
    "slot": "With dsn: the replication slot (default tailrace).",
    "publication": "With dsn: the publication (default tailrace).",
    "tables": "Comma-separated schema.table patterns with * and ?; a leading ! excludes.",
    "table": "One table, as columns with their own types instead of JSON text.",
    "columns": "With table: a comma-separated list of the columns to read.",
    "facts": "false: in a batch read of a table, only the columns of the table.",
    "startingPosition": "earliest (default), latest, an LSN such as 0/16B3748, or an ISO time.",
    "startingAfter": "An exact position such as 0/16B3748.3; overrides startingPosition.",
    "maxRowsPerTrigger": "Max changes per micro-batch, to the end of a log entry.",
    "maxBytesPerTrigger": "Max bytes of log per micro-batch, likewise.",
    "partitions": "Tasks per micro-batch (default 1: rows arrive in order).",
    "partitionBytes": "In a batch read of a table: max bytes per task (default 128 MiB).",
    "holdSeconds": "In a batch read of a table: how long an idle snapshot is held (default 30).",
    "history": "For pipelines: the history that their positions belong to.",
    "consumer": "Name under which the log retains changes that this query has not read yet.",
    "messages": "true: include logical messages (change frame only).",
    "onSchemaChange": "With table: fail (default), or ignore added and dropped columns.",
    "frame": "changes, table, blocks or cells; the last two are for pipelines.",
    "pipeline": "For pipelines: their settings.",
    "spool": "For pipelines: the folder with the rows of backfills.",
    "parked": "For pipelines: the folder with parked messages. Empty: nothing is parked.",
    "parkedTogether": "For pipelines: whether the parked messages of a key are retried together.",
    "openBatches": "For pipelines: the folder with the records of open batches.",
    "maxOpenSeconds": "For pipelines: how many seconds a batch may stay open.",
    "openFar": "For pipelines: true if batches may be open far from the end of the log, too.",
    "sourceUrl": "For pipelines with lookups: the connection string of the source.",
    "pushBytes": "For pipelines: the size of a row that moves the rows before it through Spark.",
}
_BY_LOWER_CASE = {name.lower(): name for name in HELP}
_SPARK_OPTIONS = frozenset({"path", "__datasource_options__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a query."""

    log: Path
    dsn: str = ""
    slot: str = "tailrace"
    publication: str = "tailrace"
    tables: Tables = field(default_factory=Tables)
    table: str = ""
    columns: tuple[str, ...] = ()
    facts: bool = True
    start: Start = field(default_factory=Earliest)
    after: Position | None = None
    max_rows: int = 500_000
    max_bytes: int = 64 << 20
    partitions: int = 1
    partition_bytes: int = 128 << 20
    hold_s: int = 30
    history: str = ""
    consumer: str = ""
    messages: bool = False
    ignore_schema_change: bool = False
    frame: str = "changes"
    pipeline: str = ""
    spool: Path | None = None
    parked: Path | None = None
    parked_together: bool = True
    open_batches: Path | None = None
    max_open_s: float = 0.0
    open_far: bool = False
    push_bytes: int = 1 << 20
    source_url: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Options:
        """Parse Spark's options; an unknown option is an error with a suggestion."""
        values = {}
        for key, value in options.items():
            name = _BY_LOWER_CASE.get(key.lower())
            if name is None and key.lower() not in _SPARK_OPTIONS:
                close = difflib.get_close_matches(key.lower(), list(_BY_LOWER_CASE), n=1)
                hint = f"Did you mean {_BY_LOWER_CASE[close[0]]}?" if close else _known()
                raise ConfigError(f"unknown option {key!r} of tailrace", hint=hint)
            if name is not None:
                values[name] = value
        return cls._from(values)

    @classmethod
    def _from(cls, values: dict[str, str]) -> Options:
        dsn, log = values.get("dsn", ""), values.get("log", "")
        if not (dsn or log):
            raise ConfigError('tailrace needs .option("log", folder) or .option("dsn", dsn)')
        slot = values.get("slot", "tailrace")
        frame = values.get("frame", "table" if "table" in values else "changes")
        if frame not in {"changes", "table", "blocks", "cells"}:
            raise ConfigError(f"frame must be changes, table, blocks or cells, got {frame!r}")
        table = values.get("table", "")
        tables = values.get("tables", table)
        return cls(
            log=Path(log or f"tailrace-data/{slot}").absolute(),
            dsn=dsn,
            slot=slot,
            publication=values.get("publication", "tailrace"),
            tables=Tables.parse(tables) if tables else Tables(),
            table=table,
            columns=tuple(filter(None, map(str.strip, values.get("columns", "").split(",")))),
            facts=values.get("facts", "true").lower() != "false",
            start=parse_start(values.get("startingPosition", "earliest")),
            after=_position(values.get("startingAfter", "")),
            max_rows=_number(values, "maxRowsPerTrigger", 500_000),
            max_bytes=_number(values, "maxBytesPerTrigger", 64 << 20),
            partitions=_number(values, "partitions", 1),
            partition_bytes=_number(values, "partitionBytes", 128 << 20),
            hold_s=_number(values, "holdSeconds", 30),
            history=values.get("history", ""),
            consumer=values.get("consumer", ""),
            messages=values.get("messages", "false").lower() == "true",
            ignore_schema_change=values.get("onSchemaChange", "fail").lower() == "ignore",
            frame=frame,
            pipeline=values.get("pipeline", ""),
            spool=Path(values["spool"]) if "spool" in values else None,
            parked=Path(values["parked"]) if values.get("parked") else None,
            parked_together=values.get("parkedTogether", "true").lower() == "true",
            open_batches=Path(values["openBatches"]) if "openBatches" in values else None,
            max_open_s=float(values.get("maxOpenSeconds", "0")),
            open_far=values.get("openFar", "false").lower() == "true",
            push_bytes=_number(values, "pushBytes", 1 << 20),
            source_url=values.get("sourceUrl", ""),
        )


def _position(text: str) -> Position | None:
    try:
        return Position.parse(text) if text else None
    except ValueError as error:
        raise ConfigError(f"startingAfter: {error}") from error


def _number(values: dict[str, str], name: str, default: int) -> int:
    text = values.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name} must be a whole number above 0, got {text!r}")
    return int(text)


def _known() -> str:
    return f"The options are {', '.join(HELP)}."
