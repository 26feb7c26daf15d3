"""Claims: the history that the messages of a pipeline in a stream belong to.

Positions are of one log, and a restored database uses LSNs again. So each pipeline records the
history of its messages in the stream's metadata, under the name of its owner, SLOT.PIPELINE. The
sink compares it before it delivers (`tailrace.sinks.nats.claim`), and consumers that keep a copy
compare it before they continue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ALL = ">"
_PREFIX = "tailrace.history."


@dataclass(frozen=True, slots=True)
class Claim:
    """The messages of a pipeline after a sequence belong to a history."""

    history: str = ""
    after: int = 0
    """The last sequence of the stream before the history began."""
    since_s: int = 0
    """When the pipeline replaced the claim of another history; 0 if there was none."""
    subjects: str = ALL
    """A pattern of all subjects that the pipeline publishes to."""

    @classmethod
    def parse(cls, text: str) -> Claim:
        """Read the value in the stream's metadata.

        >>> Claim.parse("5f0c2a9e+77aa01c2 1200 1794743604 cdc.shop.>")
        Claim(history='5f0c2a9e+77aa01c2', after=1200, since_s=1794743604, subjects='cdc.shop.>')
        """
        history, after, since_s, subjects = [*text.split(" "), ALL][:4]
        return cls(history, int(after), int(since_s), subjects)

    def __str__(self) -> str:
        return f"{self.history} {self.after} {self.since_s} {self.subjects}"


def key_of(owner: str) -> str:
    """The key in the stream's metadata."""
    return f"{_PREFIX}{owner}"


def claims(info: Mapping[str, Any]) -> dict[str, Claim]:
    """The claims on a stream by their owners, from JetStream's description of the stream."""
    metadata = info["config"].get("metadata") or {}
    return {
        key.removeprefix(_PREFIX): Claim.parse(text)
        for key, text in metadata.items()
        if key.startswith(_PREFIX)
    }
