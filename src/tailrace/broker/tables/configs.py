"""The settings of topics: those that have an effect, and those that clients set by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

STRING, LONG, LIST, BOOLEAN = 2, 5, 7, 1
"""Kafka's numbers for the types of settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of a topic."""

    default: str
    type: int
    choices: tuple[str, ...] = ()
    description: str

    def accepts(self, value: str) -> bool:
        """Whether the value is valid: one of `choices`, otherwise a number from -1 on."""
        if self.choices:
            return value in self.choices
        return value.removeprefix("-").isdecimal() and int(value) >= -1


SETTINGS = {
    "retention.ms": Setting(
        default="604800000",
        type=LONG,
        description="Max age of records in milliseconds. -1: unlimited.",
    ),
    "retention.bytes": Setting(
        default="-1",
        type=LONG,
        description="Max size of a partition; the oldest records are deleted. -1: unlimited.",
    ),
    "message.timestamp.type": Setting(
        default="CreateTime",
        type=STRING,
        choices=("CreateTime", "LogAppendTime"),
        description="CreateTime: the producer sets timestamps. LogAppendTime: the broker does.",
    ),
    "cleanup.policy": Setting(
        default="delete",
        type=LIST,
        choices=("delete",),
        description="Old records are deleted. Compaction is not supported.",
    ),
    "compression.type": Setting(
        default="producer",
        type=STRING,
        choices=("producer",),
        description="Records are stored uncompressed in a table.",
    ),
    "tailrace.unlogged": Setting(
        default="false",
        type=BOOLEAN,
        choices=("true", "false"),
        description="Store records in an unlogged table: faster, but a crash of PostgreSQL "
        "deletes them.",
    ),
}


def problem(config: Mapping[str, str | None]) -> str:
    """The first invalid setting, as an error message; empty if all are valid."""
    for name, value in config.items():
        setting = SETTINGS.get(name)
        if setting is None:
            return f"unknown setting {name}: must be one of {', '.join(SETTINGS)}"
        if value is None or not setting.accepts(value):
            valid = " or ".join(setting.choices) or "-1 or a larger number"
            return f"{name} must be {valid}, got {value!r}"
    return ""
