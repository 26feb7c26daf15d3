"""How far each partition is, in a compacted topic of Kafka's.

Its records are written in the transactions of what they speak of. A partition's is found by the
topic's own id, so a topic that is dropped and made again is another one.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.shadow import target

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.sinks.kafka.settings import Kafka

OWNER = b"owner"
"""The key of a record that says nothing, written to learn whether one may still write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a partition of Kafka's has.

    `runs` are offsets over here, `[first, end)`: the committed records over there, from `base` on,
    are those of the first run, then those of the second. There is one unless records were left out.
    """

    topic: str
    base: int = 0
    runs: tuple[tuple[int, int], ...] = ()
    last: int = 0
    """The digest of the last record."""

    @property
    def next(self) -> int:
        """The offset behind the last one copied."""
        return self.runs[-1][1] if self.runs else 0

    @property
    def count(self) -> int:
        """How many records there are."""
        return sum(end - first for first, end in self.runs)

    def with_records(self, first: int, end: int, last: int) -> Copied:
        """And then the records of `[first, end)`."""
        if self.runs and self.runs[-1][1] == first:
            runs = (*self.runs[:-1], (self.runs[-1][0], end))
        else:
            runs = (*self.runs, (first, end))
        return replace(self, runs=runs, last=last)

    def offset(self, index: int) -> int:
        """The offset over here of a record over there, by its number.

        >>> copied = Copied(topic="t", runs=((5, 8), (20, 30)))
        >>> [copied.offset(index) for index in (0, 2, 3, 12)]
        [5, 7, 20, 29]
        """
        for first, end in self.runs:
            if index < end - first:
                return first + index
            index -= end - first
        raise IndexError(index)

    def dump(self) -> bytes:
        """As the value of a record."""
        return json.dumps(
            {"topic": self.topic, "base": self.base, "runs": self.runs, "last": self.last}
        ).encode()

    @classmethod
    def load(cls, value: bytes) -> Copied:
        """From the value of a record."""
        fields = json.loads(value)
        return cls(
            topic=fields["topic"],
            base=fields["base"],
            runs=tuple((first, end) for first, end in fields["runs"]),
            last=fields["last"],
        )


def topic_of(settings: Kafka, name: str) -> str:
    """The topic that holds the ledger of a pipeline."""
    return f"{settings.prefix}-shadow-{name}"


def key_of(uuid: str, partition: int) -> bytes:
    """The key of a partition's record."""
    return f"{uuid}/{partition}".encode()


def read(settings: Kafka, *, name: str) -> dict[bytes, Copied]:
    """What is written, as far as transactions are over."""
    found: dict[bytes, Copied] = {}
    for message in target.committed(settings, topic_of(settings, name), 0, name=name):
        key, value = message.key(), message.value()
        if key != OWNER and isinstance(key, bytes) and value is not None:
            found[key] = Copied.load(value)
    return found


def digest(
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    seed: int = 0,
) -> int:
    """A checksum of a record, or of records one after another."""
    parts = [timestamp, key, value, *(part for header in headers for part in header)]
    return zlib.crc32(repr(parts).encode(), seed)
