"""Settings of NATS: how to reach and log in to a server, and what a stream is created with."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Literal

from pydantic import Field, SecretStr

from tailrace.settings import Bytes, Section


class NatsServer(Section):
    """A NATS server or cluster, and the login for it."""

    url: SecretStr = Field(
        default=SecretStr("nats://127.0.0.1:4222"),
        description=(
            "One or more server addresses, separated by commas. tls:// turns TLS on. An address "
            "may include user and password; it is not shown in logs."
        ),
    )
    user: str = Field(default="", description="User name.")
    password: SecretStr = Field(default=SecretStr(""), description="Password of the user.")
    token: SecretStr = Field(default=SecretStr(""), description="Token, instead of a user.")
    credentials: Path | None = Field(default=None, description="A .creds file (JWT and nkey).")
    nkey: Path | None = Field(default=None, description="File with an nkey seed.")
    tls_ca: Path | None = Field(default=None, description="Certificate authority to trust.")
    tls_certificate: Path | None = Field(default=None, description="Client certificate.")
    tls_key: Path | None = Field(default=None, description="Key of the client certificate.")
    timeout_s: float = Field(
        default=10.0,
        gt=0,
        description="Seconds without any acknowledgement before the server counts as unreachable.",
    )


class NatsStream(Section):
    """A JetStream stream: created if it is missing. An existing one gets metadata, no more."""

    name: str = Field(default="CDC", description="Name of the stream.")
    subjects: tuple[str, ...] = Field(
        default=("cdc.>",),
        description="Subjects of the stream, if Tailrace creates it.",
    )
    max_age_hours: float = Field(
        default=24.0, ge=0, description="Max age of a message in hours. 0: no limit."
    )
    max_bytes: Bytes = Field(
        default=0,
        ge=0,
        description="Max bytes in the stream; a full stream refuses messages. 0: no limit.",
    )
    max_messages: int = Field(
        default=0, ge=0, description="Max messages in the stream. 0: no limit."
    )
    replicas: int = Field(default=1, ge=1, le=5, description="Replicas in a NATS cluster.")
    duplicate_window_s: float = Field(
        default=120.0,
        ge=0,
        description="Seconds in which the server refuses a repeated message id.",
    )
    atomic: bool = Field(
        default=False,
        description="Create it with atomic batches allowed; the sink's `atomic` needs them.",
    )


class JetStreamSettings(NatsServer):
    """A stream on a NATS server, and how messages are published to it."""

    stream: NatsStream = Field(default=NatsStream(), description=NatsStream.__doc__)
    subject: str = Field(
        default="cdc.{table}.{operation}",
        description=(
            "Where a message goes when the pipeline has no `route`. {schema}, {table}, {operation} "
            "and {database} are replaced, escaped so that no two names meet."
        ),
    )
    max_outstanding: int = Field(
        default=4000, ge=1, description="Messages on their way before acks are waited for."
    )
    atomic: Literal["none", "transaction"] = Field(
        default="none",
        description=(
            "`transaction`: the changes of a source transaction appear together or not at all, up "
            "to 1,000 (nats-server 2.12)."
        ),
    )
