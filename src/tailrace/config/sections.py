"""The sections of `tailrace.yml`: frozen models, with every key described once.

`--help` and the reference page show the same descriptions. Not for the keys of sinks: each sink
has its own model, which the registry knows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
)

from tailrace.config.alerts import Alerts
from tailrace.config.http import Http
from tailrace.config.pipeline import Pipeline  # noqa: TC001 - pydantic reads them
from tailrace.config.replication import Replication
from tailrace.config.spark import Spark
from tailrace.config.telemetry import Telemetry
from tailrace.settings import Bytes, Section

_NAME_BYTES = 63


def _slot_name(name: str) -> str:
    if re.fullmatch(r"[a-z0-9_]{1,63}", name) is None:
        raise ValueError("must be 1 to 63 of the characters a-z, 0-9 and _")
    return name


def _identifier(name: str) -> str:
    if not 0 < len(name.encode()) <= _NAME_BYTES or "\0" in name:
        raise ValueError("must be a PostgreSQL name of 1 to 63 bytes")
    return name


def _pipeline_name(name: str) -> str:
    if re.fullmatch(r"[a-z0-9_-]{1,63}", name) is None:
        raise ValueError("a pipeline name must be 1 to 63 of the characters a-z, 0-9, _ and -")
    return name


SlotName = Annotated[str, AfterValidator(_slot_name)]
Identifier = Annotated[str, AfterValidator(_identifier)]
PipelineName = Annotated[str, AfterValidator(_pipeline_name)]


class Source(Section):
    """The source of changes: one database, one publication, one slot."""

    dsn: SecretStr = Field(
        default=SecretStr(""),
        description=(
            "Connection string or URI, with every libpq option (sslmode, sslrootcert, "
            "target_session_attrs ...). Empty: the PG* environment variables."
        ),
    )
    slot: SlotName = Field(
        default="tailrace",
        description="Replication slot to read. PostgreSQL keeps WAL from its position on.",
    )
    publication: Identifier = Field(
        default="tailrace",
        description="Publication that names the tables to capture.",
    )


class Log(Section):
    """The durable log that capture writes and everything else reads."""

    path: Path = Field(
        default=Path("tailrace-data/log"),
        description="Folder of the log. In a file, relative to the folder of that file.",
    )
    flush_ms: int = Field(
        default=20,
        ge=0,
        description=(
            "Max milliseconds that a committed transaction waits for its fsync. Capture waits "
            "while further transactions arrive without a pause, and collects those of a fast "
            "stream: one millisecond for each megabyte per second."
        ),
    )
    flush_bytes: Bytes = Field(
        default=2**20,
        ge=1,
        description="Bytes after which an fsync is done at once. Sizes such as 1MiB are accepted.",
    )
    segment_bytes: Bytes = Field(
        default=64 * 2**20,
        ge=1,
        description="Size after which a new segment file is created.",
    )
    codec: Literal["none", "zstd"] = Field(
        default="none",
        description="Compression of new entries. Existing entries stay readable.",
    )
    keep_hours: float = Field(
        default=24.0,
        ge=0,
        description="Hours of history kept beyond what every reader has consumed.",
    )
    keep_bytes: Bytes = Field(
        default=10 * 2**30,
        ge=0,
        description="Bytes of history kept beyond what every reader has consumed.",
    )


class Capture(Section):
    """The loop that receives, appends, fsyncs and acknowledges changes."""

    heartbeat_s: float = Field(
        default=0.0,
        ge=0,
        description="Seconds between transactional heartbeat messages in the source. 0: off.",
    )
    messages: bool = Field(
        default=True,
        description="Capture logical messages (pg_logical_emit_message) as well as rows.",
    )
    progress_s: float = Field(
        default=10.0,
        gt=0,
        description=(
            "Max seconds before WAL without changes of the published tables is acknowledged."
        ),
    )
    connect_timeout_s: int = Field(
        default=10,
        ge=1,
        description="Seconds to wait for a connection, unless the DSN sets connect_timeout.",
    )


class Config(Section):
    """The whole of `tailrace.yml`. Every key has a default; an empty file is valid."""

    source: Source = Field(default=Source(), description=Source.__doc__)
    log: Log = Field(default=Log(), description=Log.__doc__)
    capture: Capture = Field(default=Capture(), description=Capture.__doc__)
    replication: Replication = Field(default=Replication(), description=Replication.__doc__)
    data: Path = Field(
        default=Path("tailrace-data"),
        description="Folder of checkpoints and state. In a file, relative to that file's folder.",
    )
    spark: Spark = Field(default=Spark(), description=Spark.__doc__)
    http: Http = Field(default=Http(), description=Http.__doc__)
    alerts: Alerts | None = Field(default=None, description=Alerts.__doc__)
    telemetry: Telemetry | None = Field(default=None, description=Telemetry.__doc__)
    pipelines: dict[PipelineName, Pipeline] = Field(
        default={}, description="The pipelines, by name."
    )
