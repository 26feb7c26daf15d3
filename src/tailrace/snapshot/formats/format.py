"""The contract between publishing a snapshot and the messages it consists of.

A format defines the subjects and contents of messages: an optional head before all rows, the rows,
and a tail after them, or an error in its place. It knows nothing of waves, crashes and Spark. But
it recognizes messages that an earlier attempt left in the stream.
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

    from tailrace.errors import TailraceError
    from tailrace.jetstream.bulk.snapshot_messages import SnapshotMessage, SnapshotPublisher
    from tailrace.jetstream.settings import JetStreamSettings
    from tailrace.postgres.names import TableName
    from tailrace.snapshot.export import Bound
    from tailrace.snapshot.job import SnapshotJob
    from tailrace.snapshot.table import Stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch to read, with a connection that has imported the snapshot."""

    job: SnapshotJob
    connection: Connection
    stretch: Stretch
    number: int
    """The number of its first chunk."""
    step: int = 1
    """The increment between its chunks: parallel stretches use the numbers in between."""
    max_bytes: int
    """Max size of a message."""

    @property
    def select(self) -> str:
        """The query for COPY."""
        return query(self.stretch, self.job.columns, self.job.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some messages, with the columns of `SnapshotPublisher.publish`."""

    messages: pa.RecordBatch
    rows: int
    beyond: int
    """The first free chunk number after them."""

    @property
    def bytes(self) -> int:
        """The size of the messages without headers."""
        return int(pc.sum(pc.binary_length(self.messages["payload"]), min_count=0).as_py())


@dataclass(frozen=True, slots=True)
class StoredMessages:
    """Messages that are already in the stream, recognized by one of their columns."""

    column: Literal["destination", "id"]
    values: pa.BinaryArray

    def missing(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """The messages that are not in the stream."""
        if not len(self.values):
            return messages
        return messages.filter(pc.invert(pc.is_in(messages[self.column], self.values)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTotals:
    """The totals of a whole snapshot."""

    chunks: int
    rows: int
    supersedes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(ABC):
    """The messages of one snapshot."""

    id: str
    table: TableName
    pipeline: str
    """The pipeline that delivers the table's changes, SLOT.PIPELINE."""

    replaceable: ClassVar[bool]
    """Whether a snapshot with another id may replace it if the exported snapshot is lost."""

    @abstractmethod
    def body(self, part: Part) -> Iterator[Piece]:
        """The messages of a stretch: the same ones each time the stretch is read."""

    @abstractmethod
    def stored(self, publisher: SnapshotPublisher, number: int, after: int) -> StoredMessages:
        """The messages of the stretch with this number that are in the stream after `after`."""

    def has_head(self, publisher: SnapshotPublisher) -> bool:
        """Whether rows may follow: the head is in the stream, or the format has none."""
        del publisher
        return True

    def head(self, job: SnapshotJob, bound: Bound, approximate_rows: int) -> SnapshotMessage | None:
        """The message before all rows, if any."""
        del job, bound, approximate_rows
        return None

    @abstractmethod
    def tail(self, job: SnapshotJob, totals: SnapshotTotals) -> SnapshotMessage:
        """The message after all rows: the snapshot is complete."""

    @abstractmethod
    def has_tail(self, publisher: SnapshotPublisher) -> bool:
        """Whether the tail is in the stream."""

    @abstractmethod
    def failed(self, error: TailraceError, *, begun: bool) -> SnapshotMessage:
        """The message in place of the tail: the snapshot has failed.

        `begun`: whether the head is in the stream.
        """

    @abstractmethod
    def outstanding(self, sink: JetStreamSettings) -> int:
        """Max number of unacknowledged messages."""

    @abstractmethod
    def fingerprint(self, job: SnapshotJob) -> str:
        """What messages depend on. If it changes, new messages do not fit those in the stream."""
