"""The ledger: the progress of each partition, in a compacted topic of Kafka.

Its records are written in the transactions of the records that they describe. The key of a
partition has the id of its topic, so a topic that is dropped and created again is another topic.
Topics that Kafka refuses have a record as well, with the reason.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from tailrace.shadow import target
from tailrace.sinks.contract import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.sinks.kafka.settings import Kafka

OWNER = b"owner"
"""The key of an empty record. A sink writes it to find out whether it is still the owner."""
_REFUSED = b"refused/"
"""The prefix of the keys of refused topics. The uuid of a topic follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCopy:
    """The records of one partition that Kafka has.

    `runs` are ranges `[first, end)` of the broker's offsets. The committed records of the Kafka
    partition, from offset `base` on, are those of the first run, then those of the second. There is
    one run unless records were left out.
    """

    topic: str
    base: int = 0
    runs: tuple[tuple[int, int], ...] = ()
    last: int = 0
    """The digest of the last record."""

    @property
    def next(self) -> int:
        """The offset after the last copied record."""
        return self.runs[-1][1] if self.runs else 0

    @property
    def count(self) -> int:
        """Number of copied records."""
        return sum(end - first for first, end in self.runs)

    def with_records(self, first: int, end: int, last: int) -> PartitionCopy:
        """The copy after the records of `[first, end)` were added."""
        if self.runs and self.runs[-1][1] == first:
            runs = (*self.runs[:-1], (self.runs[-1][0], end))
        else:
            runs = (*self.runs, (first, end))
        return replace(self, runs=runs, last=last)

    def offset(self, index: int) -> int:
        """The broker's offset of the record with this index in Kafka.

        >>> copy = PartitionCopy(topic="t", runs=((5, 8), (20, 30)))
        >>> [copy.offset(index) for index in (0, 2, 3, 12)]
        [5, 7, 20, 29]
        """
        for first, end in self.runs:
            if index < end - first:
                return first + index
            index -= end - first
        raise IndexError(index)

    def dump(self) -> bytes:
        """The value of a ledger record."""
        return json.dumps(
            {"topic": self.topic, "base": self.base, "runs": self.runs, "last": self.last}
        ).encode()

    @classmethod
    def load(cls, value: bytes) -> PartitionCopy:
        """The copy that a ledger record describes."""
        fields = json.loads(value)
        return cls(
            topic=fields["topic"],
            base=fields["base"],
            runs=tuple((first, end) for first, end in fields["runs"]),
            last=fields["last"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The content of the topic."""

    copies: dict[bytes, PartitionCopy] = field(default_factory=dict)
    """By the key of the partition."""
    refusals: dict[str, Refusal] = field(default_factory=dict)
    """By the uuid of the topic."""


def topic_of(settings: Kafka, name: str) -> str:
    """The topic of a pipeline's ledger."""
    return f"{settings.prefix}-shadow-{name}"


def key_of(uuid: str, partition: int) -> bytes:
    """The key of a partition's ledger record."""
    return f"{uuid}/{partition}".encode()


def refusal_key_of(uuid: str) -> bytes:
    """The key of a topic's refusal; its record is empty after the topic resumed."""
    return _REFUSED + uuid.encode()


def dump_refusal(refusal: Refusal) -> bytes:
    """The value of a refusal's record."""
    return json.dumps(asdict(refusal)).encode()


def read(settings: Kafka, *, name: str) -> dict[bytes, PartitionCopy]:
    """The committed progress of partitions, by key."""
    return read_all(settings, name=name).copies


def read_all(settings: Kafka, *, name: str) -> Ledger:
    """The committed ledger."""
    ledger = Ledger()
    for message in target.committed(settings, topic_of(settings, name), 0, name=name):
        key, value = message.key(), message.value()
        if key == OWNER or not isinstance(key, bytes):
            continue
        if key.startswith(_REFUSED):
            uuid = key.removeprefix(_REFUSED).decode()
            ledger.refusals.pop(uuid, None)
            if value:
                ledger.refusals[uuid] = Refusal(**json.loads(value))
        elif value is not None:
            ledger.copies[key] = PartitionCopy.load(value)
    return ledger


def digest(
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    seed: int = 0,
) -> int:
    """A checksum of a record; with the digest of the records before it as `seed`, of all."""
    parts = [timestamp, key, value, *(part for header in headers for part in header)]
    return zlib.crc32(repr(parts).encode(), seed)
