"""Settings of the sink `pull`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.settings import Bytes  # noqa: TC001 - pydantic reads the annotations
from tailrace.sinks.sink_type import SinkSettings

_TOKEN_CHARACTERS = 16


def _tokens(tokens: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name, token in tokens.items():
        text = token.get_secret_value()
        if len(text) < _TOKEN_CHARACTERS or not text.isascii() or not text.isprintable():
            raise ValueError(
                f"the token of {name!r} must be at least {_TOKEN_CHARACTERS} printable ASCII "
                "characters"
            )
    return tokens


class PullSink(SinkSettings):
    """Messages that consumers fetch over HTTP."""

    type: Literal["pull"] = Field(description="This sink: `pull`.")
    mode: Literal["events", "records"] = Field(
        default="events",
        description=(
            "`events`: every change is a message. `records`: the newest state of each row; a newer "
            "change of a key replaces the one that waits."
        ),
    )
    name: str = Field(
        default="{schema}.{table}",
        min_length=1,
        description=(
            "`destination` of a message when the pipeline has no `route`: {schema}, {table}, "
            "{operation} and {database} are replaced."
        ),
    )
    tokens: Annotated[dict[str, SecretStr], AfterValidator(_tokens)] = Field(
        default={},
        repr=False,
        description=(
            "Tokens of consumers, by any name. Each may fetch from this pipeline and do nothing "
            "else. Empty: consumers need the token of the HTTP endpoints."
        ),
    )
    visibility_s: float = Field(
        default=30.0,
        ge=0.1,
        le=43_200,
        description=(
            "Seconds in which a consumer must acknowledge a message, before it is delivered again. "
            "A request may ask for another time."
        ),
    )
    max_ack_pending: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Max messages that are delivered and not acknowledged, of all consumers.",
    )
    max_deliveries: int = Field(
        default=10,
        ge=0,
        description=(
            "After so many deliveries without an acknowledgement a message is exhausted: it waits "
            "for `tailrace pull retry` or `drop`. 0: never."
        ),
    )
    max_receive_bytes: Bytes = Field(
        default=8 * 2**20,
        ge=1,
        le=2**28,
        description="Max bytes of the messages in one answer, which has at least one message.",
    )
    max_bytes: Bytes = Field(
        default=2**30,
        ge=1,
        description=(
            "Max bytes of messages in the store. When it is full the pipeline waits, and the log "
            "keeps what follows. Exhausted messages, and what waits for them, do not stop others."
        ),
    )
    batch_rows: int = Field(
        default=5000,
        ge=1,
        le=100_000,
        description="Max messages in one transaction of the store. Consumers wait for it.",
    )
    batch_bytes: Bytes = Field(
        default=4 * 2**20,
        ge=1,
        le=2**30,
        description="Max bytes of the messages in one transaction of the store.",
    )
    max_message_bytes: Bytes = Field(
        default=5 * 2**20, ge=1, le=2**29, description="Larger messages are not stored."
    )
    timeout_s: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="Max seconds to wait for space in the store before the pipeline is retrying.",
    )

    @property
    def template(self) -> str:
        """The destination."""
        return self.name

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.max_bytes < self.max_message_bytes:
            raise ValueError("`max_bytes` must be at least `max_message_bytes`")
        return self
