"""Settings of the sink `postgres`. Loads no client library."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.errors import ConfigError
from tailrace.postgres.names import TableName
from tailrace.settings import Bytes  # noqa: TC001 - pydantic reads the annotations
from tailrace.sinks.sink_type import SinkSettings

_RETENTION = re.compile(r"(\d+)([hdw])")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def _retention(text: str) -> str:
    if text and (_RETENTION.fullmatch(text) is None or not int(text[:-1])):
        raise ValueError(f"must be a duration such as 12h, 90d or 52w, got {text!r}")
    return text


def _table(text: str) -> str:
    try:
        TableName.parse(text)
    except ConfigError as error:
        raise ValueError(f"{error}. {error.hint}") from error
    return text


class PostgresSink(SinkSettings):
    """Another PostgreSQL database."""

    type: Literal["postgres"] = Field(description="This sink: `postgres`.")
    dsn: SecretStr = Field(
        description="The target database: a connection string of libpq, as `source.dsn`."
    )
    password: SecretStr = Field(
        default=SecretStr(""), description="Password, if it is not part of `dsn`."
    )
    mode: Literal["events", "tables"] = Field(
        default="events",
        description=(
            "`events`: every message becomes a row of the table `events`. `tables`: rows of "
            "existing tables are inserted, updated and deleted by key; needs `shape: plain`."
        ),
    )
    table: str = Field(
        default="{schema}.{table}",
        min_length=1,
        description=(
            "Destination of a message when the pipeline has no `route`: {schema}, {table}, "
            "{operation} and {database} are replaced with quoted names. With mode `tables` it is "
            "the target table, with mode `events` the value of a column."
        ),
    )
    events: Annotated[str, AfterValidator(_table)] = Field(
        default="public.wal_events",
        description="With mode `events`: the table, as in SQL. It is created if it is missing.",
    )
    payload: Literal["jsonb", "json", "bytea"] = Field(
        default="jsonb",
        description=(
            "With mode `events`: type of the column `payload`. `jsonb` and `json` need "
            "`encoding: json`; `bytea` takes any encoding."
        ),
    )
    partition: Literal["hour", "day", "month"] = Field(
        default="day",
        description="With mode `events`: the time that one partition of a new table covers.",
    )
    retention: Annotated[str, AfterValidator(_retention)] = Field(
        default="",
        description=(
            "With mode `events`: drop partitions whose last row is older, for example 90d. Empty: "
            "never."
        ),
    )
    positions: Annotated[str, AfterValidator(_table)] = Field(
        default="tailrace.positions",
        description="The table that holds the position of each lane. It is created if missing.",
    )
    synchronous_commit: Literal["", "off", "local", "remote_write", "on", "remote_apply"] = Field(
        default="", description="`synchronous_commit` of the session. Empty: the server's."
    )
    replica_role: bool = Field(
        default=False,
        description=(
            "Set `session_replication_role` to replica: ordinary triggers and foreign keys of the "
            "target tables do not fire. The role needs the permission to set it."
        ),
    )
    statement_timeout_s: int = Field(
        default=300,
        ge=1,
        le=2_000_000,
        description=(
            "Max seconds of a statement on the target. A server that does not answer for "
            "`connect_timeout_s` longer counts as unreachable."
        ),
    )
    connect_timeout_s: int = Field(
        default=10, ge=1, le=3600, description="Max seconds to wait for a connection."
    )
    max_message_bytes: Bytes = Field(
        default=5 * 2**20, ge=1, le=2**28, description="Larger messages are not written."
    )

    @property
    def template(self) -> str:
        """The target table, or the destination in a row of events."""
        return self.table

    @property
    def keep(self) -> timedelta | None:
        """How long partitions are kept; None: for ever."""
        match = _RETENTION.fullmatch(self.retention)
        return timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else None

    @model_validator(mode="after")
    def _fits_mode(self) -> Self:
        unused = {"events", "payload", "partition", "retention"} & self.model_fields_set
        if self.mode == "tables" and unused:
            raise ValueError(f"`{min(unused)}` needs `mode: events`")
        if self.mode == "events" and "replica_role" in self.model_fields_set:
            raise ValueError("`replica_role` needs `mode: tables`")
        return self
