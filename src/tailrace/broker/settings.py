"""The settings of `tailrace broker`: its options are built from this model.

Not here: the connection string (it is in the settings file, or `--dsn`), and limits that only tests
change (`tailrace.broker.limits`).
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from tailrace.broker.limits import Limits
from tailrace.settings import Flag, Section, is_loopback

_LIMITS = Limits()


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`.

    >>> parse_address("[::1]:9092")
    ('::1', 9092)
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"must be host:port such as 127.0.0.1:9092, got {text!r}")
    return host, int(port)


def _check_address(text: str) -> str:
    parse_address(text)
    return text


Address = Annotated[str, AfterValidator(_check_address)]


class BrokerSettings(Section):
    """How a broker listens, and how much its clients may use."""

    listen: Annotated[Address, Flag(env="TAILRACE_BROKER_LISTEN", metavar="HOST:PORT")] = Field(
        default="127.0.0.1:9092",
        description="Address to listen on: the bootstrap.servers of clients. An address other than "
        "loopback requires users and TLS.",
    )
    advertise: Annotated[
        Address | None, Flag(env="TAILRACE_BROKER_ADVERTISE", metavar="HOST:PORT")
    ] = Field(
        default=None,
        description="Address that clients are given to connect to, if it is not the one to listen "
        "on: that of a proxy, or the name in the certificate.",
    )
    tls_cert: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None,
        description="TLS certificate with its chain (PEM). SIGHUP reloads it.",
    )
    tls_key: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None, description="Private key of the certificate (PEM), without a password."
    )
    tls_client_ca: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None,
        description="Require client certificates of this authority (PEM), in addition to a login.",
    )
    insecure: Annotated[bool, Flag(switch=True)] = Field(
        default=False,
        description="Listen on other addresses than loopback without TLS, on a trusted network. "
        "Clients still log in.",
    )
    auto_create: bool = Field(
        default=True,
        description="Create topics that clients ask for, as Kafka does by default.",
    )
    partitions: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Partitions of topics that are created without a number of partitions.",
    )
    max_message_bytes: int = Field(
        default=8 << 20, ge=1024, description="Max record batch, compressed and decompressed."
    )
    tail_bytes: int = Field(
        default=64 << 20,
        ge=0,
        description="Memory for the latest record batches, which consumers read without SQL.",
    )
    connections: int = Field(
        default=4,
        ge=1,
        description="Connections to PostgreSQL for reading; two more write and listen.",
    )
    retention_check_s: Annotated[float, Flag(name="--retention-check", metavar="SECONDS")] = Field(
        default=60.0, ge=0.1, description="Interval of the search for old records to delete."
    )
    producer_id_expiration_s: Annotated[
        float, Flag(name="--producer-id-expiration", metavar="SECONDS")
    ] = Field(
        default=86_400.0,
        ge=1,
        description="Forget idempotent producers that have not written to a partition for this "
        "long, as Kafka's producer.id.expiration.ms.",
    )
    offsets_retention_s: Annotated[float, Flag(name="--offsets-retention", metavar="SECONDS")] = (
        Field(
            default=604_800.0,
            ge=1,
            description="Delete offsets of consumer groups that have had no members for this long, "
            "as Kafka's offsets.retention.minutes.",
        )
    )
    max_connections: int = Field(
        default=_LIMITS.connections,
        ge=1,
        description="Max clients at a time; further connections are closed at once.",
    )
    request_memory_bytes: Annotated[int, Flag(name="--request-memory", metavar="BYTES")] = Field(
        default=_LIMITS.memory_bytes,
        ge=1 << 20,
        description="Memory for requests in progress; further requests wait.",
    )
    idle_timeout_s: Annotated[float, Flag(name="--idle-timeout", metavar="SECONDS")] = Field(
        default=_LIMITS.idle_s,
        ge=1,
        description="Close connections that send no request for this long.",
    )
    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port of the HTTP endpoints /health, /ready, /status and /metrics. 0: none.",
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        files = (self.tls_cert, self.tls_key, self.tls_client_ca)
        if any(files) and (self.tls_cert is None or self.tls_key is None):
            raise ValueError("TLS requires both --tls-cert and --tls-key")
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        return parse_address(self.listen)

    @property
    def advertised(self) -> tuple[str, int] | None:
        """Host and port that clients are given instead."""
        return None if self.advertise is None else parse_address(self.advertise)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.address[0])

    @property
    def limits(self) -> Limits:
        """The limits for clients."""
        return Limits(
            connections=self.max_connections,
            memory_bytes=self.request_memory_bytes,
            idle_s=self.idle_timeout_s,
        )
