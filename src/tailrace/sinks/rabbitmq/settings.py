"""Settings of the sink `rabbitmq`."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.settings import Bytes  # noqa: TC001 - pydantic reads the annotations
from tailrace.sinks.rabbitmq.address import Address
from tailrace.sinks.sink_type import SinkSettings

_EXCHANGE = re.compile(r"[^/\s\x00-\x1f\x7f]{0,255}")
_ROUTING_KEY = re.compile(r"[^\x00-\x1f\x7f]{0,255}")
_SHORT_BYTES = 255
_OURS = {"x-queue-type": "queue_type"}
_KEY_HEADER = "key"


def _url(value: SecretStr) -> SecretStr:
    Address.parse(value.get_secret_value())
    return value


def _exchange(text: str) -> str:
    if _EXCHANGE.fullmatch(text) is None:
        raise ValueError("must be a name without blanks and slashes, such as cdc")
    return text


def _routing_key(text: str) -> str:
    if _ROUTING_KEY.fullmatch(text) is None:
        raise ValueError("must be a routing key such as {schema}.{table}")
    return text


def _short(text: str) -> str:
    if len(text.encode()) > _SHORT_BYTES:
        raise ValueError(f"must be at most {_SHORT_BYTES} bytes")
    return text


def _headers(values: dict[str, str]) -> dict[str, str]:
    for name in values:
        if not name or len(name.encode()) > _SHORT_BYTES:
            raise ValueError(f"{name!r} is not a valid header")
        if name == _KEY_HEADER:
            raise ValueError(f"{name!r} cannot be set: it is the key of the message")
    return values


def _arguments(values: dict[str, bool | int | str]) -> dict[str, bool | int | str]:
    for name in values:
        if name in _OURS:
            raise ValueError(f"{name} cannot be set: use `{_OURS[name]}` instead")
    return values


class RabbitMQSink(SinkSettings):
    """RabbitMQ."""

    type: Literal["rabbitmq"] = Field(description="This sink: `rabbitmq`.")
    url: Annotated[SecretStr, AfterValidator(_url)] = Field(
        default=SecretStr("amqp://127.0.0.1:5672"),
        description=(
            "amqp://HOST:PORT/VHOST, or amqps:// for TLS. Several nodes of a cluster are separated "
            "by commas and tried in this order. It may include user and password; only its "
            "addresses are shown."
        ),
    )
    user: str = Field(default="", description="User name; `guest` if `url` has none either.")
    password: SecretStr = Field(default=SecretStr(""), description="Password of the user.")
    mechanism: Literal["PLAIN", "EXTERNAL"] = Field(
        default="PLAIN",
        description="`EXTERNAL`: the client certificate names the user.",
    )
    virtual_host: Annotated[str, AfterValidator(_short)] = Field(
        default="", description="Virtual host; empty for that of `url`."
    )
    tls_ca: Path | None = Field(default=None, description="Certificate authority to trust.")
    tls_certificate: Path | None = Field(default=None, description="Client certificate.")
    tls_key: Path | None = Field(default=None, description="Key of the client certificate.")
    timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description=(
            "Seconds without an answer after which the sink counts as unreachable, and seconds to "
            "wait while the broker blocks publishers."
        ),
    )
    heartbeat_s: int = Field(
        default=60,
        ge=0,
        le=3600,
        description="Seconds without a frame after which either side drops the connection. 0: off.",
    )
    exchange: Annotated[str, AfterValidator(_exchange)] = Field(
        default="tailrace",
        description=(
            "Exchange. {schema}, {table}, {operation} and {database} are replaced with escaped "
            "names. Empty: the default exchange, which delivers to the queue that the routing key "
            "names. A `route` of the pipeline may name another as EXCHANGE/ROUTING_KEY."
        ),
    )
    routing_key: Annotated[str, AfterValidator(_routing_key)] = Field(
        default="{schema}.{table}",
        description=(
            "Routing key when the pipeline has no `route`. The same placeholders are replaced."
        ),
    )
    declare: Literal["none", "exchange", "queues"] = Field(
        default="queues",
        description=(
            "What is declared if it is missing; nothing that exists is altered. `exchange`: a "
            "durable exchange. `queues`: also a durable queue EXCHANGE.ROUTING_KEY for each "
            "routing key, bound with it. `none`: messages to a missing exchange are refused."
        ),
    )
    exchange_type: Annotated[str, Field(pattern="[a-z][a-z0-9-]*")] = Field(
        default="topic", description="Type of an exchange that is declared."
    )
    queue_type: Literal["quorum", "classic", "stream"] = Field(
        default="quorum", description="Type of a queue that is declared."
    )
    queue_arguments: Annotated[dict[str, bool | int | str], AfterValidator(_arguments)] = Field(
        default={}, description="Arguments of a queue that is declared, such as x-max-length."
    )
    mandatory: bool = Field(
        default=True,
        description="A message that reaches no queue is refused. Otherwise RabbitMQ drops it.",
    )
    persistent: bool = Field(
        default=True, description="Messages survive a restart of the broker in durable queues."
    )
    content_type: Annotated[str, AfterValidator(_short)] = Field(
        default="application/json", description="Property `content_type` of messages."
    )
    message_type: Annotated[str, AfterValidator(_short)] = Field(
        default="", description="Property `type` of messages; empty for none."
    )
    headers: Annotated[dict[str, str], AfterValidator(_headers)] = Field(
        default={},
        description=(
            "Headers of every message, shown in plans and the console. `key` is that of the "
            "message."
        ),
    )
    max_outstanding: int = Field(
        default=4000, ge=1, le=1_000_000, description="Max messages without a confirm."
    )
    max_outstanding_bytes: Bytes = Field(
        default=64 * 2**20, ge=1, le=2**40, description="Max bytes of messages without a confirm."
    )
    max_message_bytes: Bytes = Field(
        default=5 * 2**20,
        ge=1,
        le=2**29,
        description="Larger messages are not sent. At most the broker's max_message_size.",
    )

    @property
    def template(self) -> str:
        """Exchange and routing key."""
        return f"{self.exchange}/{self.routing_key}"

    @property
    def address(self) -> Address:
        """The servers of `url`."""
        return Address.parse(self.url.get_secret_value())

    @property
    def login(self) -> tuple[str, str]:
        """User and password."""
        address = self.address
        user = self.user or address.user
        password = self.password.get_secret_value() or address.password
        return (user, password) if user else ("guest", "guest")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        address, external = self.address, self.mechanism == "EXTERNAL"
        user = self.user or address.user
        password = self.password.get_secret_value() or address.password
        if bool(user) != bool(password):
            raise ValueError("`user` and `password` must be set together")
        if external and (user or self.tls_certificate is None):
            raise ValueError("`mechanism: EXTERNAL` needs `tls_certificate` instead of a user")
        if password and not address.tls and not address.local:
            raise ValueError("the password would be sent unencrypted: use an amqps:// URL")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("`tls_certificate` and `tls_key` must be set together")
        if (self.tls_ca or self.tls_certificate) and not address.tls:
            raise ValueError("the `tls_` settings need an amqps:// URL")
        return self

    @model_validator(mode="after")
    def _consistent_declaration(self) -> Self:
        if not self.exchange and not self.routing_key:
            raise ValueError("the default exchange needs a `routing_key`: the name of a queue")
        if self.declare == "queues" and self.exchange_type not in ("topic", "direct"):
            raise ValueError("`declare: queues` needs an `exchange_type` of topic or direct")
        return self
