"""Settings of Apache Kafka: how to connect to a cluster, and the keys of the sink `kafka`."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.settings import Bytes, Section, is_loopback
from tailrace.sinks.sink_type import SinkSettings

_TEMPLATE = re.compile(r"(?:[A-Za-z0-9._-]|\{(?:schema|table|operation|database)\})+")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")
_ALLOWED_VALUES = {
    "enable.idempotence": ("true",),
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
}
"""Settings that must keep one value: without it, messages could be lost."""
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
"""Settings of librdkafka that have their own key in Tailrace, or cannot be set."""
_MECHANISM = ("sasl.mechanism", "sasl.mechanisms")


def _template(text: str) -> str:
    if _TEMPLATE.fullmatch(text) is None:
        raise ValueError(
            "must consist of letters, digits, `.`, `_`, `-`, {schema}, {table}, {operation} and "
            "{database}"
        )
    return text


def _prefix(text: str) -> str:
    if _PREFIX.fullmatch(text) is None:
        raise ValueError("must be 1 to 100 letters, digits, `.`, `_` and `-`")
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


def _host(broker: str) -> str:
    """The host of one of the `bootstrap` addresses; empty if it is invalid."""
    try:
        return urlsplit(f"//{broker.strip().rpartition('://')[2]}").hostname or ""
    except ValueError:
        return ""


class Kafka(Section):
    """A cluster of Apache Kafka, and how to write to it."""

    bootstrap: str = Field(
        default="127.0.0.1:9092",
        min_length=1,
        description="Addresses of one or more brokers as host:port, separated by commas.",
    )
    create: bool = Field(
        default=True, description="Create missing topics. Existing topics are never altered."
    )
    replicas: int = Field(
        default=-1,
        ge=-1,
        le=100,
        description="Replication factor of topics that Tailrace creates. -1: the broker's default.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="zstd", description="Compression of message batches."
    )
    linger_ms: float = Field(
        default=5.0, ge=0, le=900_000, description="Milliseconds to wait for a larger batch."
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
        description="Max bytes of messages in flight per lane; then writing waits.",
    )
    transaction_timeout_s: float = Field(
        default=120.0,
        ge=1,
        le=86_400,
        description=(
            "Max seconds of a transaction. After a crash an open transaction delays consumers for "
            "that long, unless the pipeline restarts earlier."
        ),
    )
    prefix: Annotated[str, AfterValidator(_prefix)] = Field(
        default="tailrace",
        description=(
            "Prefix of transactional ids and of the topic of positions. Two installations on one "
            "cluster need different ones."
        ),
    )
    user: str = Field(default="", description="User name, for SASL.")
    password: SecretStr = Field(default=SecretStr(""), description="Password of the user.")
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512",
        description="SASL mechanism. PLAIN needs TLS, unless all of `bootstrap` is on loopback.",
    )
    tls: bool = Field(
        default=False, description="Use TLS. Any of the `tls_` settings enables it too."
    )
    tls_ca: Path | None = Field(default=None, description="Certificate authority to trust.")
    tls_certificate: Path | None = Field(default=None, description="Client certificate.")
    tls_key: Path | None = Field(default=None, description="Key of the client certificate.")
    timeout_s: float = Field(
        default=10.0,
        gt=0,
        description="Seconds without an ack after which the sink counts as unreachable.",
    )
    settings: Annotated[dict[str, str], AfterValidator(_librdkafka)] = Field(
        default={},
        repr=False,
        description=(
            "Any setting of librdkafka; it overrides Tailrace's own. Settings that would break a "
            "promise are refused."
        ),
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if bool(self.user) != bool(self.password.get_secret_value()):
            raise ValueError("`user` and `password` must be set together")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("`tls_certificate` and `tls_key` must be set together")
        return self

    @property
    def protocol(self) -> str:
        """librdkafka's `security.protocol`."""
        tls = self.tls or bool(self.tls_ca or self.tls_certificate or self.tls_key)
        protocol = ("SASL_" if self.user else "") + ("SSL" if tls else "PLAINTEXT")
        return self.settings.get("security.protocol", protocol).upper()

    @property
    def codec(self) -> str:
        """What compresses messages; `none` if nothing does."""
        own = self.settings.get("compression.type", self.compression)
        return self.settings.get("compression.codec", own)

    @model_validator(mode="after")
    def _password_is_protected(self) -> Self:
        """With PLAIN the password itself is sent; with SCRAM it never is."""
        own = [self.settings[key] for key in _MECHANISM if key in self.settings]
        plain = "PLAIN" in {name.upper() for name in own or [self.mechanism]}
        local = all(is_loopback(_host(each)) for each in self.bootstrap.split(","))
        if self.user and plain and self.protocol == "SASL_PLAINTEXT" and not local:
            raise ValueError(
                "mechanism PLAIN would send the password unencrypted: set `tls: true`, or use "
                "SCRAM-SHA-512. Without TLS, PLAIN is allowed for brokers on loopback only"
            )
        return self


class KafkaSink(SinkSettings, Kafka):
    """Apache Kafka."""

    type: Literal["kafka"] = Field(description="This sink: `kafka`.")
    topic: Annotated[str, AfterValidator(_template)] = Field(
        default="{database}.{schema}.{table}",
        description=(
            "Topic of a message when the pipeline has no `route`. {schema}, {table}, {operation} "
            "and {database} are replaced with escaped names."
        ),
    )
    partitions: int = Field(
        default=1, ge=1, le=100_000, description="Partitions of topics that Tailrace creates."
    )
    headers: bool = Field(default=True, description="Add the event id as header `tailrace-id`.")
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
