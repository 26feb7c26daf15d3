"""The options of the presets, as settings models: the command line is built from them.

No PostgreSQL or NATS library is imported here, so that `--help` stays fast.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from tailrace.encode.creek.names import LayoutName  # noqa: TC001 - pydantic reads it
from tailrace.settings import Flag, Section

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_PART = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
# The levels of the Go library that Creek logs with, and those of Tailrace.
_LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "fatal": "error",
    "panic": "error",
}
_DATA = (
    "Folder for log, checkpoints and status. Default: tailrace-data/SLOT. A restart resumes from "
    "it: keep it."
)
_SLOT = "Replication slot: PostgreSQL stores the position under it. Created at the first start."
_HOST = "Address of the HTTP endpoints. Everyone who reaches it can read /status."
_HOSTS = (
    "Names under which HTTP clients such as Prometheus reach the endpoints, separated by commas. "
    "Addresses and localhost need not be named."
)
_INSECURE = (
    "Let the HTTP endpoints listen beyond loopback without users and TLS: in a trusted network, or "
    "behind a proxy that has both."
)


def duration_s(text: str) -> float:
    """A duration in Go's notation, in seconds.

    >>> duration_s("1h30m"), duration_s("1.5s"), duration_s("0")
    (5400.0, 1.5, 0.0)
    """
    if text != "0" and re.fullmatch(f"(?:{_PART})+", text) is None:
        raise ValueError(f"must be a duration such as 10s, got {text!r}")
    return float(sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, text)))


def _duration(text: str) -> str:
    duration_s(text)
    return text


def _positive_duration(text: str) -> str:
    if duration_s(text) < 0.001:
        raise ValueError(f"must be a duration of at least 1ms, got {text!r}")
    return text


def _level(text: str) -> str:
    if text.lower() not in _LEVELS:
        raise ValueError(f"must be one of {', '.join(_LEVELS)}, got {text!r}")
    return text


def _policy(text: str) -> str:
    if text.lower() not in ("limits", "0"):
        raise ValueError(f"must be limits, got {text!r}")
    return text


Duration = Annotated[str, AfterValidator(_duration)]
PositiveDuration = Annotated[str, AfterValidator(_positive_duration)]


class BridgeOptions(Section):
    """The options of `tailrace bridge`."""

    slot: Annotated[str, Flag(metavar="NAME")] = Field(default="cdc_slot", description=_SLOT)
    pub: Annotated[str, Flag(metavar="NAME")] = Field(
        description="Publication that names the tables. It must exist."
    )
    port: int = Field(
        default=9090, ge=0, le=65535, description="Port of the HTTP endpoints. 0: no endpoints."
    )
    host: Annotated[str, Flag(metavar="ADDRESS")] = Field(default="127.0.0.1", description=_HOST)
    hosts: Annotated[str, Flag(metavar="NAMES")] = Field(default="", description=_HOSTS)
    insecure: Annotated[bool, Flag(env="TAILRACE_INSECURE", switch=True)] = Field(
        default=False, description=_INSECURE
    )
    as_json: Annotated[bool, Flag(name="--json", switch=True)] = Field(
        default=False, description="Encode messages as JSON. Default: MessagePack."
    )
    zstd: Annotated[bool, Flag(switch=True)] = Field(
        default=False,
        description="Compress snapshots (stream INIT). Changes (stream CDC) are never compressed.",
    )
    data: Annotated[Path | None, Flag(metavar="DIR")] = Field(default=None, description=_DATA)

    @property
    def folder(self) -> Path:
        """The data folder."""
        return (self.data or Path("tailrace-data") / self.slot).absolute()


class CreekOptions(Section):
    """The options of `tailrace creek`."""

    pg_uri: Annotated[SecretStr, Flag(env="PG_URI", metavar="URI")] = Field(
        default=SecretStr(""),
        description="The database: postgres://user:password@host:5432/shop. Required.",
    )
    publication: Annotated[str, Flag(env="PG_PUBLICATION_NAME", metavar="NAME")] = Field(
        default="creek",
        description="Publication that names the tables. Created at the first start if it is "
        "missing.",
    )
    slot: Annotated[str, Flag(env="PG_PUBLICATION_SLOT", metavar="NAME")] = Field(
        default="creek", description=_SLOT
    )
    tables: Annotated[str, Flag(env="PG_TABLES", metavar="NAMES")] = Field(
        default="",
        description="Tables of a publication that is created, separated by blanks or commas: "
        "public.orders, public.customers. Later: SELECT _creek.add_table(...).",
    )
    message_timeout: Annotated[
        PositiveDuration, Flag(env="PG_MESSAGE_TIMEOUT", metavar="DURATION")
    ] = Field(
        default="10s",
        description="Max time before WAL without published changes is acknowledged.",
    )
    nats_uri: Annotated[str, Flag(env="NATS_URI", metavar="URI")] = Field(
        default="nats://localhost:4222",
        repr=False,
        description="NATS servers, separated by commas. They may include user and password.",
    )
    namespace: Annotated[str, Flag(env="NATS_NAMESPACE", metavar="NAME")] = Field(
        default="CREEK",
        description="Prefix of all subjects and streams. Producers of several databases may share "
        "one.",
    )
    layout: Annotated[LayoutName, Flag(env="NATS_LAYOUT")] = Field(
        default="namespace",
        description="Names of streams and subjects. namespace: NS_wal, for Creek's clients of "
        "2023; database: NS_wal_DATABASE, for those of 2025.",
    )
    encoding: Literal["avro", "avro-plain"] = Field(
        default="avro",
        description="avro-plain: types without namespaces, for clients of Creek's first release.",
    )
    nats_timeout: Annotated[PositiveDuration, Flag(env="NATS_TIMEOUT", metavar="DURATION")] = Field(
        default="30s", description="Max time without an answer before NATS counts as unreachable."
    )
    max_pending: Annotated[int, Flag(env="NATS_MAX_PENDING")] = Field(
        default=4000, ge=1, description="Max messages without an acknowledgement."
    )
    replicas: Annotated[int, Flag(env="NATS_REPLICAS")] = Field(
        default=1, ge=1, le=5, description="Replicas of each stream in a NATS cluster."
    )
    max_age: Annotated[Duration, Flag(env="NATS_RETENTION_MAX_AGE", metavar="DURATION")] = Field(
        default="168h", description="Max age of changes and snapshots in NATS. 0: no limit."
    )
    max_bytes: Annotated[int, Flag(env="NATS_RETENTION_MAX_BYTES")] = Field(
        default=0,
        ge=0,
        description="Max bytes of changes in NATS; new ones then wait in the log. 0: no limit.",
    )
    max_messages: Annotated[
        int, Flag(env="NATS_RETENTION_LIMIT_MAX_MSGS", env_aliases=("NATS_RETENTION_MAX_MSGS",))
    ] = Field(
        default=0,
        ge=0,
        description="Max changes in NATS; new ones then wait in the log. 0: no limit.",
    )
    retention_policy: Annotated[
        str, AfterValidator(_policy), Flag(env="NATS_RETENTION_POLICY", metavar="POLICY")
    ] = Field(
        default="limits",
        description="Only limits, or 0 as Creek writes it: with the other policies NATS deletes "
        "messages that clients have yet to read.",
    )
    log_level: Annotated[str, AfterValidator(_level), Flag(env="LOG_LEVEL", metavar="LEVEL")] = (
        Field(default="info", description="debug, info, warn or error.")
    )
    port: Annotated[int, Flag(env="PROMETHEUS_PORT")] = Field(
        default=7779,
        ge=0,
        le=65535,
        description="Port of /metrics and the other HTTP endpoints. 0: no endpoints.",
    )
    host: Annotated[str, Flag(metavar="ADDRESS")] = Field(default="127.0.0.1", description=_HOST)
    hosts: Annotated[str, Flag(metavar="NAMES")] = Field(default="", description=_HOSTS)
    insecure: Annotated[bool, Flag(env="TAILRACE_INSECURE", switch=True)] = Field(
        default=False, description=_INSECURE
    )
    data: Annotated[Path | None, Flag(metavar="DIR")] = Field(default=None, description=_DATA)

    @property
    def folder(self) -> Path:
        """The data folder."""
        return (self.data or Path("tailrace-data") / self.slot).absolute()

    @property
    def level(self) -> str:
        """The log level in Tailrace's words."""
        return _LEVELS[self.log_level.lower()]
