"""Creek's snapshots: a header, one message per row, EOF, all on one subject, the topic.

A row's message id is `{snapshot}-{stretch}-{row}`. A retry reads the ids back and so knows which
rows are already on the topic, also after the server's duplicate window. Creek's clients take every
message on the topic for the next row, so no other snapshot can continue on it. A message with the
header `Tailrace-Error` tells Tailrace's clients that the snapshot has failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.encode.creek import schema as creek
from tailrace.encode.creek.layout import row_messages
from tailrace.jetstream.bulk.snapshot_messages import SnapshotMessage
from tailrace.snapshot.copy import copy
from tailrace.snapshot.formats.format import Format, Piece, StoredMessages
from tailrace.snapshot.rows import read_group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from tailrace.decode.group import Image
    from tailrace.errors import TailraceError
    from tailrace.jetstream.bulk.snapshot_messages import SnapshotPublisher
    from tailrace.jetstream.settings import JetStreamSettings
    from tailrace.snapshot.export import Bound
    from tailrace.snapshot.formats.format import Part, SnapshotTotals
    from tailrace.snapshot.job import SnapshotJob


@dataclass(frozen=True, slots=True, kw_only=True)
class CreekFormat(Format):
    """One message per row."""

    topic: str

    replaceable: ClassVar[bool] = False

    def has_head(self, publisher: SnapshotPublisher) -> bool:
        """Whether the topic has any message: the header is the first."""
        return publisher.last_id(self.topic) is not None

    def head(self, job: SnapshotJob, bound: Bound, approximate_rows: int) -> SnapshotMessage:
        """The header: the rows' schema, and where clients continue in the stream.

        They read from `at` on and skip changes up to `lsn`.
        """
        snapshot = job.snapshot
        schema = creek.row(job.table.relation, job.table.types)
        fields = {
            "fingerprint": schema.name,
            "schema": schema.text,
            "tx_id": snapshot.visibility.xmax & 0xFFFFFFFF,
            "lsn": str(bound.lsn),
            "snapshot_lsn": str(snapshot.lsn),
            "at": _rfc3339(bound.since),
            "taken_at": _rfc3339(snapshot.taken_at),
            "approx_rows": approximate_rows,
            "visibility": str(snapshot.visibility),
            "since": _rfc3339(snapshot.since) if snapshot.since else None,
            "pipeline": self.pipeline,
        }
        return self._control("head", orjson.dumps(fields))

    def body(self, part: Part) -> Iterator[Piece]:
        """One piece per block of COPY. All rows of a stretch have the same number."""
        job, number, first = part.job, part.number, 0
        for count, image in copy(part.connection, part.select, len(job.columns)):
            columns = {
                "destination": _repeated(self.topic.encode(), count),
                "id": self._ids(number, first, count),
                "payload": _packets(job, image, count),
            }
            messages = pa.RecordBatch.from_pydict(columns)
            yield Piece(messages=messages, rows=count, beyond=number + 1)
            first += count

    def _ids(self, number: int, first: int, count: int) -> pa.BinaryArray:
        rows = pc.cast(pa.array(np.arange(first, first + count)), pa.string()).cast(pa.binary())
        prefix = pa.scalar(f"{self.id}-{number}-".encode(), pa.binary())
        return pc.binary_join_element_wise(prefix, rows, pa.scalar(b"", pa.binary()))

    def stored(self, publisher: SnapshotPublisher, number: int, after: int) -> StoredMessages:
        """The rows of the stretch that are on the topic."""
        prefix = f"{self.id}-{number}-".encode()
        ids = publisher.ids(self.topic, after=after)
        found = [message_id for message_id in ids if message_id.startswith(prefix)]
        return StoredMessages("id", pa.array(found, pa.binary()))

    def tail(self, job: SnapshotJob, totals: SnapshotTotals) -> SnapshotMessage:
        """The EOF message."""
        del job, totals
        return self._control("end", creek.END)

    def has_tail(self, publisher: SnapshotPublisher) -> bool:
        """Whether EOF is the topic's last message: nothing follows it."""
        return publisher.last_id(self.topic) == self._message_id("end")

    def failed(self, error: TailraceError, *, begun: bool) -> SnapshotMessage:
        """An error in place of the missing rows and EOF.

        Creek has no such message. In place of the header, a packet without a schema makes its
        clients fail. Among the rows they would decode a packet as a row, so the error is none: a
        payload that begins with `{` is the rest of a packet to them, which they discard.
        """
        fields = {"error": str(error), "code": error.code, "hint": error.hint}
        content = orjson.dumps(fields)
        return SnapshotMessage(
            destination=self.topic,
            id=self._message_id("failed"),
            payload=content if begun else creek.packet(content),
            headers=(("Tailrace-Error", error.code),),
        )

    def _control(self, kind: str, content: bytes) -> SnapshotMessage:
        return SnapshotMessage(
            destination=self.topic,
            id=self._message_id(kind),
            payload=creek.packet(content),
        )

    def _message_id(self, kind: str) -> str:
        return f"{self.id}-{kind}"

    def outstanding(self, sink: JetStreamSettings) -> int:
        """The sink's limit: rows are as small as changes."""
        return sink.max_outstanding

    def fingerprint(self, job: SnapshotJob) -> str:
        """The fingerprint of the schema in the header."""
        return creek.row(job.table.relation, job.table.types).name


def _packets(job: SnapshotJob, image: Image, count: int) -> pa.BinaryArray:
    if not image:
        # A row without columns is encoded as no bytes.
        return _repeated(creek.packet(b""), count)
    return row_messages(read_group(job.table, job.snapshot, image, count))


def _repeated(value: bytes, count: int) -> pa.BinaryArray:
    return pa.repeat(pa.scalar(value, pa.binary()), count)


def _rfc3339(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
