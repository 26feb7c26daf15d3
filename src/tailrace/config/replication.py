"""Settings of replicas: who follows this log, what a follower has to have, and when one takes over.

The variables of Chronik's design set the same keys, for a machine that was prepared for it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path  # noqa: TC003 - pydantic reads them
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.settings import Bytes, Section, is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:]+)\]|([^:\[\]\s]+)):(\d{1,5})")
_MIN_KEY = 16
_MAX_PORT = 65_535


def _address(text: str) -> str:
    host_and_port(text)
    return text


def host_and_port(text: str) -> tuple[str, int]:
    """The parts of an address.

    >>> host_and_port("db2:7432"), host_and_port("[::1]:7432")
    (('db2', 7432), ('::1', 7432))
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > _MAX_PORT:
        raise ValueError(f"{text!r} must be HOST:PORT, such as db2:7432 or [::1]:7432")
    return match[1] or match[2], int(match[3])


def _key(value: SecretStr) -> SecretStr:
    if 0 < len(value.get_secret_value()) < _MIN_KEY:
        raise ValueError(f"must have at least {_MIN_KEY} characters")
    return value


Address = Annotated[str, AfterValidator(_address)]


class ReplicationTls(Section):
    """Certificates of this machine, for both directions."""

    ca: Path = Field(description="PEM file of the authority that signed the other's certificate.")
    cert: Path = Field(description="PEM file of this machine's certificate.")
    key: Path = Field(description="PEM file of its private key.")


class Replication(Section):
    """Copies of the log on other machines. See docs/guides/replicas.md."""

    followers: tuple[Address, ...] = Field(
        default=(), description="Addresses of the followers to send the log to, as HOST:PORT."
    )
    listen: Address = Field(
        default="127.0.0.1:7432",
        description="Where `tailrace follow` listens for its leader, as HOST:PORT.",
    )
    node: str = Field(
        default="",
        max_length=100,
        description="Name of this machine in messages and metrics. Empty: its host name.",
    )
    mode: Literal["async", "sync"] = Field(
        default="async",
        description=(
            "async: the slot is acknowledged when this machine has a change. sync: when `quorum` "
            "followers have fsynced it, too."
        ),
    )
    quorum: int = Field(
        default=1, ge=1, le=15, description="How many followers must have a change, in mode sync."
    )
    visible: Literal["durable", "quorum"] = Field(
        default="durable",
        description=(
            "How far readers and pipelines read: what this machine has fsynced, or, in mode sync, "
            "what a quorum of followers has, too."
        ),
    )
    compression: Literal["none", "zstd"] = Field(
        default="none", description="Compression of what is sent. It pays on slow connections."
    )
    heartbeat_s: float = Field(
        default=10.0, gt=0, description="Seconds between two signs of life of the leader."
    )
    timeout_s: float = Field(
        default=30.0, gt=0, description="Seconds of silence after which a connection is dead."
    )
    reconnect_s: float = Field(
        default=30.0, gt=0, description="Seconds before the leader connects again."
    )
    handshake_s: float = Field(
        default=5.0, gt=0, description="Seconds for connecting and for each answer of a handshake."
    )
    max_lag_bytes: Bytes = Field(
        default=50 * 2**30,
        ge=0,
        description=(
            "Bytes of log to keep for a follower that is away. Past it, the follower starts over."
        ),
    )
    max_lag_hours: float = Field(
        default=72.0,
        ge=0,
        description="Hours of log to keep for a follower that is away.",
    )
    state_every_s: float = Field(
        default=2.0,
        ge=0,
        description=(
            "Seconds between two copies of the pipelines' state (checkpoints, parked messages, "
            "backfills). 0: only the log is copied."
        ),
    )
    scrub_hours: float = Field(
        default=24.0,
        ge=0,
        description=(
            "Hours between two times that a follower reads and checks its whole copy, the first "
            "time when it has started. Segments that cannot be read are fetched again. 0: never."
        ),
    )
    takeover: Literal["manual", "auto"] = Field(
        default="manual",
        description=(
            "auto: a follower takes over automatically when its leader is silent and no session "
            "reads the slot, both for `takeover_after_s`; a leader that was deposed follows. "
            "manual: with `tailrace takeover`."
        ),
    )
    takeover_after_s: float = Field(
        default=60.0, gt=0, description="Seconds before a follower takes over automatically."
    )
    key: Annotated[SecretStr, AfterValidator(_key)] = Field(
        default=SecretStr(""),
        description=(
            "Secret that leader and followers share. Both prove that they know it; what is sent is "
            "not encrypted."
        ),
    )
    tls: ReplicationTls | None = Field(default=None, description=ReplicationTls.__doc__)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.followers)) < len(self.followers):
            raise ValueError("followers names an address twice")
        if self.mode == "sync" and self.quorum > len(self.followers):
            raise ValueError(
                f"mode sync waits for {self.quorum} of {len(self.followers)} followers"
            )
        if self.visible == "quorum" and self.mode != "sync":
            raise ValueError("visible: quorum needs mode: sync")
        if self.takeover == "auto" and self.takeover_after_s <= 2 * self.heartbeat_s:
            raise ValueError("takeover_after_s must be more than two times heartbeat_s")
        if self.heartbeat_s >= self.timeout_s:
            raise ValueError("heartbeat_s must be less than timeout_s")
        return self

    @property
    def waits_for(self) -> int:
        """How many followers must have a change before PostgreSQL may forget it."""
        return self.quorum if self.mode == "sync" else 0

    @property
    def keeps_state(self) -> bool:
        """Whether followers must have what a pipeline parks, before its sink passes it."""
        return self.waits_for > 0 and self.state_every_s > 0

    @property
    def hides(self) -> bool:
        """Whether readers wait for the quorum."""
        return self.waits_for > 0 and self.visible == "quorum"

    def protected(self) -> bool:
        """Whether a stranger can neither read nor write the log over the network."""
        return self.tls is not None or bool(self.key.get_secret_value())


def exposed(address: str) -> bool:
    """Whether an address can be reached from other machines."""
    return not is_loopback(host_and_port(address)[0])


def from_environment(variables: Mapping[str, str] = os.environ) -> dict[str, object]:
    """The keys that the variables of Chronik's design set.

    CHRONIK_REPLICATION_MAX_QUEUE_SIZE has no counterpart: the log is the queue, and nothing is
    dropped from it.
    """
    found: dict[str, object] = {}
    if followers := variables.get("CHRONIK_REPLICATION_FOLLOWERS"):
        found["followers"] = [each.strip() for each in followers.split(",") if each.strip()]
    if mode := variables.get("CHRONIK_REPLICATION_MODE"):
        found["mode"] = mode
    if address := variables.get("CHRONIK_WAL_RECEIVER_BIND_ADDR"):
        found["listen"] = address
    return found
