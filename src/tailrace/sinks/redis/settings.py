"""Settings of the sink `redis`."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.settings import Bytes  # noqa: TC001 - pydantic reads the annotations
from tailrace.sinks.destination import LATEST_STATE
from tailrace.sinks.redis.address import Address
from tailrace.sinks.sink_type import SinkSettings

_SENTINEL_PORT = 26379
_NAME = re.compile(r"[^\s{}]{1,200}")
_TEMPLATE = re.compile(r"[^\s\x00-\x1f\x7f]{1,1000}")


def _url(value: SecretStr) -> SecretStr:
    Address.parse(value.get_secret_value())
    return value


def _template(text: str) -> str:
    if _TEMPLATE.fullmatch(text) is None:
        raise ValueError("must be a name without blanks, such as cdc:{schema}.{table}")
    return text


def _prefix(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ValueError("must be 1 to 200 characters without blanks and braces")
    return text


class RedisSink(SinkSettings):
    """Redis."""

    type: Literal["redis"] = Field(description="This sink: `redis`.")
    url: Annotated[SecretStr, AfterValidator(_url)] = Field(
        default=SecretStr("redis://127.0.0.1:6379"),
        description=(
            "redis://HOST:PORT/DATABASE, rediss:// for TLS, or unix:///PATH. Several addresses of "
            "a cluster or of Sentinels are separated by commas. It may include user and password; "
            "only its addresses are shown."
        ),
    )
    user: str = Field(default="", description="User name; empty for the default user.")
    password: SecretStr = Field(default=SecretStr(""), description="Password of the user.")
    cluster: bool = Field(default=False, description="`url` names nodes of a Redis Cluster.")
    sentinel_master: str = Field(
        default="",
        description="`url` names Sentinels, which are asked for the master of this name.",
    )
    sentinel_password: SecretStr = Field(
        default=SecretStr(""), description="Password of the Sentinels, if they have one."
    )
    tls_ca: Path | None = Field(default=None, description="Certificate authority to trust.")
    tls_certificate: Path | None = Field(default=None, description="Client certificate.")
    tls_key: Path | None = Field(default=None, description="Key of the client certificate.")
    timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="Seconds without an answer after which the sink counts as unreachable.",
    )
    mode: Literal["stream", "string", "publish"] = Field(
        default="stream",
        description=(
            "`stream`: add to a stream. `string`: set a key to the latest state of its row. "
            "`publish`: publish to a channel."
        ),
    )
    name: Annotated[str, AfterValidator(_template)] = Field(
        default="{schema}.{table}",
        description=(
            "Stream, channel or beginning of the key when the pipeline has no `route`. {schema}, "
            "{table}, {operation} and {database} are replaced with escaped names."
        ),
    )
    ids: Literal["auto", "position"] = Field(
        default="auto",
        description=(
            "Ids of stream entries: `auto` is Redis' clock, `position` is LSN-ORDINAL in decimal, "
            "which needs a single lane."
        ),
    )
    maxlen: int = Field(
        default=0, ge=0, le=2**53, description="Max entries of a stream. 0: no limit."
    )
    maxlen_exact: bool = Field(
        default=False,
        description="Trim to exactly `maxlen`. Otherwise Redis keeps up to about 100 more.",
    )
    expire_s: float = Field(
        default=0.0,
        ge=0,
        le=3_000_000_000,
        description="Seconds after which a key of mode `string` expires. 0: never.",
    )
    wait_replicas: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Replicas that must have received a message before it counts (WAIT).",
    )
    wait_aof: bool = Field(
        default=False,
        description=(
            "Messages count once they are in the fsynced append-only file, also of "
            "`wait_replicas` (WAITAOF, Redis 7.2)."
        ),
    )
    batch_rows: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Max messages in one script. Other clients of Redis wait for it.",
    )
    batch_bytes: Bytes = Field(
        default=2**20, ge=1, le=2**28, description="Max bytes of the messages in one script."
    )
    max_message_bytes: Bytes = Field(
        default=5 * 2**20, ge=1, le=2**29 - 2**20, description="Larger messages are not sent."
    )
    prefix: Annotated[str, AfterValidator(_prefix)] = Field(
        default="tailrace",
        description=(
            "Beginning of the keys that hold positions. Two installations on one Redis need "
            "different ones."
        ),
    )

    @property
    def template(self) -> str:
        """The destination; in mode `string` one that tells deletes apart."""
        return LATEST_STATE + self.name if self.mode == "string" else self.name

    @property
    def address(self) -> Address:
        """The servers of `url`."""
        port = _SENTINEL_PORT if self.sentinel_master else 6379
        return Address.parse(self.url.get_secret_value(), port=port)

    @property
    def login(self) -> tuple[str, str]:
        """User and password."""
        address = self.address
        return self.user or address.user, self.password.get_secret_value() or address.password

    @property
    def stores_position(self) -> bool:
        """Whether every message is in a script with the position that it reaches. In a cluster the
        keys of rows are on many servers, and a script has the keys of one."""
        return not (self.cluster and self.mode == "string")

    @model_validator(mode="after")
    def _consistent_address(self) -> Self:
        address = self.address
        if self.cluster and self.sentinel_master:
            raise ValueError("`cluster` and `sentinel_master` cannot be combined")
        if address.path and (self.cluster or self.sentinel_master):
            raise ValueError("a Unix domain socket is one server")
        if len(address.hosts) > 1 and not (self.cluster or self.sentinel_master):
            raise ValueError("several addresses need `cluster: true` or `sentinel_master`")
        if self.cluster and address.database:
            raise ValueError("a cluster has no databases")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("`tls_certificate` and `tls_key` must be set together")
        if (self.tls_ca or self.tls_certificate) and not address.tls:
            raise ValueError("the `tls_` settings need a rediss:// URL")
        secret = self.login[1] or self.sentinel_password.get_secret_value()
        if secret and not address.tls and not address.local:
            raise ValueError("the password would be sent unencrypted: use a rediss:// URL")
        if self.login[0] and not self.login[1]:
            raise ValueError("`user` needs a `password`")
        return self

    @model_validator(mode="after")
    def _consistent_mode(self) -> Self:
        if self.mode != "stream" and (self.maxlen or self.ids != "auto"):
            raise ValueError("`maxlen` and `ids` are for `mode: stream`")
        if self.mode != "string" and self.expire_s:
            raise ValueError("`expire_s` is for `mode: string`")
        if self.expire_s and self.expire_s < 0.001:
            raise ValueError("`expire_s` must be at least 0.001")
        if self.mode == "string" and "{operation}" in self.name:
            raise ValueError("with `mode: string`, all operations of a row need the same `name`")
        return self
