"""Settings of topics: those that mean something here, and those that clients set out of habit."""

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
    meaning: str

    def accepts(self, value: str) -> bool:
        """Whether it may have this value."""
        if self.choices:
            return value in self.choices
        return value.removeprefix("-").isdecimal() and int(value) >= -1


SETTINGS = {
    "retention.ms": Setting(
        default="604800000", type=LONG, meaning="How long records are kept. -1: for ever."
    ),
    "retention.bytes": Setting(
        default="-1", type=LONG, meaning="Bytes a partition may have before the oldest go. -1: any."
    ),
    "message.timestamp.type": Setting(
        default="CreateTime",
        type=STRING,
        choices=("CreateTime", "LogAppendTime"),
        meaning="Whose clock a record's time is of: the producer's or the broker's.",
    ),
    "cleanup.policy": Setting(
        default="delete", type=LIST, choices=("delete",), meaning="Old records are deleted."
    ),
    "compression.type": Setting(
        default="producer", type=STRING, choices=("producer",), meaning="Tables are not compressed."
    ),
    "tailrace.unlogged": Setting(
        default="false",
        type=BOOLEAN,
        choices=("true", "false"),
        meaning="Kept in an unlogged table: quicker, and gone when PostgreSQL crashes.",
    ),
}


def wrong(config: Mapping[str, str | None]) -> str:
    """What is wrong with the settings of a topic; nothing if they will do."""
    for name, value in config.items():
        if name not in SETTINGS:
            return f"there is no setting {name}; there are {', '.join(SETTINGS)}"
        if value is None or not SETTINGS[name].accepts(value):
            return f"{name} cannot be {value!r}"
    return ""
