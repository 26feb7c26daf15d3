"""The comparison of a copy: the results, and the merge that finds differences.

No I/O here: `tailrace.shadow.verify` reads both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.shadow.ledger import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Offset in the broker, milliseconds (0: not to be compared), key, value, headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A committed offset of a consumer group, and the Kafka offset of the same record."""

    group: str
    topic: str
    partition: int
    offset: int
    kafka_offset: int
    metadata: str = ""


@dataclass(slots=True, kw_only=True)
class PartitionComparison:
    """The comparison of one partition."""

    topic: str
    partition: int
    first: int
    next: int
    """The offsets in the broker."""
    copied: int = 0
    """Records that the ledger says were copied."""
    dropped: int = 0
    """Copied records that Kafka's retention has deleted since."""
    compared: int = 0
    lag: int = 0
    """Records that are not copied yet."""
    checksum: int = 0
    kafka_checksum: int = 0
    difference: str = ""
    """The first difference."""

    @property
    def safe(self) -> bool:
        """Whether the copy is complete."""
        return not self.lag and not self.difference and self.checksum == self.kafka_checksum

    def note(self, difference: str) -> None:
        """Record a difference, if it is the first."""
        self.difference = self.difference or difference


@dataclass(slots=True, kw_only=True)
class Comparison:
    """The comparison of all copied partitions, and the groups that read them."""

    partitions: list[PartitionComparison] = field(default_factory=list)
    groups: list[Committed] = field(default_factory=list)
    not_copied: list[str] = field(default_factory=list)
    """Topics that are not copied."""

    @property
    def safe(self) -> bool:
        """Whether consumers and producers may move to Kafka."""
        return all(partition.safe for partition in self.partitions)


class Merge:
    """Compares the records of a partition on both sides, in order of their offsets.

    With the next record of the broker's table at offset 7, a record of Kafka is

    | Kafka's record | result                                                             |
    |----------------|--------------------------------------------------------------------|
    | offset 7       | both are compared                                                  |
    | offset 9       | offsets 7 and 8 are missing in Kafka                               |
    | offset 5       | offset 5 is missing in the table; no difference if the broker's    |
    |                | retention has deleted it, which is so before `first`               |
    """

    def __init__(self, result: PartitionComparison, records: Iterator[Record]) -> None:
        self._result = result
        self._records = records
        self._next = next(records, None)

    def add(self, copy: Record) -> None:
        """Compare the next record of Kafka."""
        offset, result = copy[0], self._result
        while self._next is not None and self._next[0] < offset:
            self._skip_missing(self._next)
        if self._next is None or self._next[0] > offset:
            if offset >= result.first:
                result.note(f"offset {offset} is missing in PostgreSQL")
            return
        record = self._next
        if 0 in (record[1], copy[1]):
            # librdkafka replaces the timestamp 0 by the present time.
            copy = (offset, record[1], *copy[2:])
        result.compared += 1
        result.checksum = digest(*record[1:], seed=result.checksum)
        result.kafka_checksum = digest(*copy[1:], seed=result.kafka_checksum)
        if record != copy:
            result.note(f"offset {offset} differs")
        self._next = next(self._records, None)

    def finish(self) -> None:
        """Kafka has no more records."""
        while self._next is not None:
            self._skip_missing(self._next)

    def _skip_missing(self, record: Record) -> None:
        self._result.note(f"offset {record[0]} is missing in Kafka")
        self._next = next(self._records, None)
