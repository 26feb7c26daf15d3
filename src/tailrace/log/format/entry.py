"""An entry: one group commit, the unit that is written, fsynced and read.

An entry holds either whole transactions or a fragment of exactly one, so that the visible part of
the log always ends with an entry. The body holds the raw pgoutput messages one after another.
`offsets` holds the start of each message and the end of the last, so a reader passes one buffer and
one array to numpy.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tailrace.position import Lsn, Position


class Kind(enum.IntEnum):
    """What an entry holds."""

    TRANSACTIONS = 1
    """Whole transactions, and messages outside any transaction."""
    FRAGMENT = 2
    """A part of one transaction that is too large for an entry."""
    SCHEMA = 3
    """The relations and types in force; the first entry of every segment."""
    PROGRESS = 4
    """Only a newer `end_lsn`: PostgreSQL wrote WAL without a published change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One group commit.

    `first` and `last` are the positions of its first and last change. A transaction without changes
    counts with ordinal 0; kinds without changes repeat the last position before them. `end_lsn` is
    the LSN that capture acknowledges once the entry is durable and visible. Times are microseconds
    since 2000-01-01 UTC, as on the wire. `begins` and `ends` say whether a fragment is the first or
    the last of its transaction.
    """

    kind: Kind
    first: Position
    last: Position
    end_lsn: Lsn
    first_time: int
    last_time: int
    xid: int = 0
    begins: bool = True
    ends: bool = True
    transactions: int = 0
    changes: int = 0
    schemas: int = 0
    epoch: int = 0
    offsets: NDArray[np.uint32]
    body: bytes

    @property
    def visible(self) -> bool:
        """Whether the log ends at a transaction boundary after this entry."""
        return self.ends

    def messages(self) -> Iterator[memoryview]:
        """The raw pgoutput messages, in order."""
        view = memoryview(self.body)
        bounds = self.offsets.tolist()
        for start, end in pairwise(bounds):
            yield view[start:end]

    def schema_messages(self) -> Iterator[memoryview]:
        """The Relation and Type messages alone."""
        if not self.schemas:
            return
        starts = self.offsets[:-1]
        kinds = np.frombuffer(self.body, np.uint8)[starts]
        view = memoryview(self.body)
        for index in np.flatnonzero((kinds == ord("R")) | (kinds == ord("Y"))):
            yield view[self.offsets[index] : self.offsets[index + 1]]


NO_OFFSETS: NDArray[np.uint32] = np.zeros(1, np.uint32)


def pack(messages: list[bytes]) -> tuple[NDArray[np.uint32], bytes]:
    """Offsets and body for these messages."""
    lengths = [0, *(len(message) for message in messages)]
    return np.cumsum(lengths).astype(np.uint32), b"".join(messages)
