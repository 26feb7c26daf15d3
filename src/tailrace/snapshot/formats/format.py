"""The seam between what makes a snapshot and what its messages are.

A format knows where messages go and what is in them: perhaps one before all rows, the rows, one
behind them, or one that says that there will be no such message. It knows nothing of waves, crashes
and Spark, but for one thing: what an earlier attempt has left in the stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.snapshot.copy import query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from tailrace.config import NatsSink
    from tailrace.errors import TailraceError
    from tailrace.jetstream.bulk.snapshot_messages import SnapshotMessage, SnapshotPublisher
    from tailrace.position import Lsn
    from tailrace.postgres.publication import TableName
    from tailrace.snapshot.job import SnapshotJob
    from tailrace.snapshot.table import Stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch that is to be read, over a connection that sees the snapshot."""

    edition: SnapshotJob
    connection: Connection
    stretch: Stretch
    number: int
    """The first that its messages may have."""
    step: int = 1
    """By how much numbers go up: others count in between."""
    most_bytes: int
    """What a message may have."""

    @property
    def select(self) -> str:
        """What COPY reads."""
        return query(self.stretch, self.edition.columns, self.edition.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some messages, with the columns `tailrace.sinks.nats.Parcels.publish` wants."""

    messages: pa.RecordBatch
    rows: int
    beyond: int
    """The first number that is free behind them."""

    @property
    def bytes(self) -> int:
        """What the messages have without their headers."""
        return int(pc.sum(pc.binary_length(self.messages["payload"]), min_count=0).as_py())


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """Messages that are in the stream already, as told by one of their columns."""

    column: Literal["destination", "id"]
    values: pa.BinaryArray

    def missing(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Those that are not."""
        if not len(self.values):
            return messages
        return messages.filter(pc.invert(pc.is_in(messages[self.column], self.values)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a whole snapshot came to."""

    chunks: int
    rows: int
    supersedes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(ABC):
    """The messages of one snapshot."""

    id: str
    table: TableName

    replaceable: ClassVar[bool]
    """Whether another snapshot may take its place, under another id, when it is gone."""

    @abstractmethod
    def body(self, part: Part) -> Iterator[Piece]:
        """The rows of a stretch, the same each time."""

    @abstractmethod
    def stored(self, parcels: SnapshotPublisher, number: int, after: int) -> StoredChunks:
        """What is in the stream of a stretch and its number, all of it behind a message."""

    def headed(self, parcels: SnapshotPublisher) -> bool:
        """Whether rows may follow: there is a message before them, or none is needed."""
        del parcels
        return True

    def head(self, edition: SnapshotJob, lsn: Lsn, approximate_rows: int) -> SnapshotMessage | None:
        """The message before all rows, if there is one. Every change up to `lsn` is in them."""
        del edition, lsn, approximate_rows
        return None

    @abstractmethod
    def tail(self, edition: SnapshotJob, made: Made) -> SnapshotMessage:
        """The message that says that all rows are there."""

    @abstractmethod
    def ended(self, parcels: SnapshotPublisher) -> bool:
        """Whether that message is there."""

    @abstractmethod
    def failed(self, error: TailraceError) -> SnapshotMessage:
        """The message that says that there will be none."""

    @abstractmethod
    def outstanding(self, sink: NatsSink) -> int:
        """How many messages may be on their way."""

    @abstractmethod
    def fingerprint(self, edition: SnapshotJob) -> str:
        """What must not change while it is made: the rest would not fit what is in the stream."""
