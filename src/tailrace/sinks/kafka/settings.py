"""The sections of sinks that are Apache Kafka."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.settings import Bytes, Section
from tailrace.sinks.sink_type import SinkSettings

_TEMPLATE = re.compile(r"(?:[A-Za-z0-9._-]|\{(?:schema|table|operation|database)\})+")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")
_ALLOWED_VALUES = {
    "enable.idempotence": ("true",),
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
}
"""Settings with one value that keeps the promise."""
_OURS = {
    "bootstrap.servers": "bootstrap",
    "metadata.broker.list": "bootstrap",
    "transactional.id": "prefix",
    "transaction.timeout.ms": "transaction_timeout_s",
    "message.max.bytes": "max_message_bytes",
    "sasl.username": "user",
    "sasl.password": "password",
    "delivery.report.only.error": "none",
    "on_delivery": "none",
    "error_cb": "none",
    "logger": "none",
}
"""Settings that have a key of their own, or none at all."""


def _template(text: str) -> str:
    if _TEMPLATE.fullmatch(text) is None:
        raise ValueError(
            "should be made of letters, digits, `.`, `_`, `-`, {schema}, {table}, {operation} and "
            "{database}"
        )
    return text


def _prefix(text: str) -> str:
    if _PREFIX.fullmatch(text) is None:
        raise ValueError("should be 1 to 100 letters, digits, `.`, `_` and `-`")
    return text


def _librdkafka(settings: dict[str, str]) -> dict[str, str]:
    for key, value in settings.items():
        if key in _ALLOWED_VALUES and value.lower() not in _ALLOWED_VALUES[key]:
            raise ValueError(f"{key} must stay {_ALLOWED_VALUES[key][0]}: messages would be lost")
        if key in _OURS:
            own = _OURS[key]
            instead = f"use `{own}` instead" if own != "none" else "Tailrace needs it"
            raise ValueError(f"{key} cannot be set: {instead}")
    return settings


class Kafka(Section):
    """A cluster of Apache Kafka, and how to write to it."""

    bootstrap: str = Field(
        default="127.0.0.1:9092",
        min_length=1,
        description="Addresses of one or more brokers as host:port, with commas between.",
    )
    create: bool = Field(
        default=True, description="Create topics that are missing. None is ever altered."
    )
    replicas: int = Field(
        default=-1,
        ge=-1,
        le=100,
        description="Copies of topics that Tailrace creates. -1: as the broker has it.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="zstd", description="Compression of message batches."
    )
    linger_ms: float = Field(
        default=5.0, ge=0, le=900_000, description="Milliseconds to wait for a fuller batch."
    )
    max_message_bytes: Bytes = Field(
        default=1_000_000,
        ge=1000,
        le=1_000_000_000,
        description="Largest message and batch. Topics need a max.message.bytes that allows it.",
    )
    queue_bytes: Bytes = Field(
        default=64 * 2**20,
        ge=2**20,
        le=2**31,
        description="Bytes of messages on their way, of each lane, before writing waits.",
    )
    transaction_timeout_s: float = Field(
        default=120.0,
        ge=1,
        le=86_400,
        description=(
            "Seconds a transaction may take; after a crash its messages hold consumers up for as "
            "long, unless the pipeline comes back earlier."
        ),
    )
    prefix: Annotated[str, AfterValidator(_prefix)] = Field(
        default="tailrace",
        description=(
            "What transactional ids and the topic of positions begin with. Two installations on "
            "one cluster need two."
        ),
    )
    user: str = Field(default="", description="User name, for SASL.")
    password: SecretStr = Field(default=SecretStr(""), description="Password of the user.")
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="How a user logs in."
    )
    tls: bool = Field(
        default=False, description="Use TLS. Any of the `tls_` settings turns it on as well."
    )
    tls_ca: Path | None = Field(default=None, description="Certificate authority to trust.")
    tls_certificate: Path | None = Field(default=None, description="Client certificate.")
    tls_key: Path | None = Field(default=None, description="Key of the client certificate.")
    timeout_s: float = Field(
        default=10.0, gt=0, description="Seconds without any ack before the sink counts as gone."
    )
    settings: Annotated[dict[str, str], AfterValidator(_librdkafka)] = Field(
        default={},
        description=(
            "Any setting of librdkafka, over Tailrace's own; those that would break its promises "
            "are refused."
        ),
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if bool(self.user) != bool(self.password.get_secret_value()):
            raise ValueError("`user` and `password` belong together")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("`tls_certificate` and `tls_key` belong together")
        return self


class KafkaSink(SinkSettings, Kafka):
    """Apache Kafka."""

    type: Literal["kafka"] = Field(description="This sink: `kafka`.")
    topic: Annotated[str, AfterValidator(_template)] = Field(
        default="{database}.{schema}.{table}",
        description=(
            "Where a message goes when the pipeline has no `route`. {schema}, {table}, {operation} "
            "and {database} are replaced, escaped so that no two names meet."
        ),
    )
    partitions: int = Field(
        default=1, ge=1, le=100_000, description="Partitions of topics that Tailrace creates."
    )
    headers: bool = Field(
        default=True, description="Put the change's id into the header `tailrace-id`."
    )
    transactional: bool = Field(
        default=False,
        description=(
            "Exactly once: a batch and the position it reaches are one Kafka transaction. "
            "Consumers need isolation.level=read_committed."
        ),
    )

    @property
    def template(self) -> str:
        """The topic."""
        return self.topic
