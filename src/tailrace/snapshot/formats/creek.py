"""Creek's snapshots: a header, a message a row, EOF, all under one subject, the topic.

A row's id says where it stands in the table, `{snapshot}-{stretch}-{row}`, so an attempt that is
made again knows what is on the topic already, long after the server has forgotten the ids. Whoever
reads the topic takes each message for the next row: no other snapshot can go on with it, and a
message with the header `Tailrace-Error` says that the rest will not come.
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
from tailrace.snapshot.formats.format import Format, Piece, StoredChunks
from tailrace.snapshot.rows import read_group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from tailrace.config import NatsSink
    from tailrace.decode.group import Image
    from tailrace.errors import TailraceError
    from tailrace.jetstream.bulk.snapshot_messages import SnapshotPublisher
    from tailrace.position import Lsn
    from tailrace.snapshot.formats.format import Made, Part
    from tailrace.snapshot.job import SnapshotJob


@dataclass(frozen=True, slots=True, kw_only=True)
class CreekFormat(Format):
    """A message a row."""

    topic: str

    replaceable: ClassVar[bool] = False

    def headed(self, parcels: SnapshotPublisher) -> bool:
        """Whether there is anything on the topic: the header comes first."""
        return parcels.last_id(self.topic) is not None

    def head(self, edition: SnapshotJob, lsn: Lsn, approximate_rows: int) -> SnapshotMessage:
        """The header: how to read the rows, and which changes to leave out."""
        snapshot = edition.snapshot
        schema = creek.row(edition.table.relation, edition.table.types)
        fields = {
            "fingerprint": schema.name,
            "schema": schema.text,
            "tx_id": snapshot.visibility.xmax & 0xFFFFFFFF,
            "lsn": str(lsn),
            "at": _rfc3339(snapshot.taken_at),
            "approx_rows": approximate_rows,
            "visibility": str(snapshot.visibility),
            "since": _rfc3339(snapshot.since) if snapshot.since else None,
        }
        return self._told("head", orjson.dumps(fields))

    def body(self, part: Part) -> Iterator[Piece]:
        """As many rows at a time as a block of COPY has. A stretch has one number."""
        edition, number, first = part.edition, part.number, 0
        for count, image in copy(part.connection, part.select, len(edition.columns)):
            columns = {
                "destination": _repeated(self.topic.encode(), count),
                "id": self._ids(number, first, count),
                "payload": _packets(edition, image, count),
            }
            messages = pa.RecordBatch.from_pydict(columns)
            yield Piece(messages=messages, rows=count, beyond=number + 1)
            first += count

    def _ids(self, number: int, first: int, count: int) -> pa.BinaryArray:
        rows = pc.cast(pa.array(np.arange(first, first + count)), pa.string()).cast(pa.binary())
        lead = pa.scalar(f"{self.id}-{number}-".encode(), pa.binary())
        return pc.binary_join_element_wise(lead, rows, pa.scalar(b"", pa.binary()))

    def stored(self, parcels: SnapshotPublisher, number: int, after: int) -> StoredChunks:
        """The rows of the stretch that are on the topic."""
        lead = f"{self.id}-{number}-".encode()
        found = [each for each in parcels.ids(self.topic, after=after) if each.startswith(lead)]
        return StoredChunks("id", pa.array(found, pa.binary()))

    def tail(self, edition: SnapshotJob, made: Made) -> SnapshotMessage:
        """EOF."""
        del edition, made
        return self._told("end", creek.END)

    def ended(self, parcels: SnapshotPublisher) -> bool:
        """Whether EOF is there: nothing comes behind it."""
        return parcels.last_id(self.topic) == self._name("end")

    def failed(self, error: TailraceError) -> SnapshotMessage:
        """An error in place of whatever is missing."""
        fields = {"error": str(error), "code": error.code, "hint": error.hint}
        return self._told("failed", orjson.dumps(fields), ("Tailrace-Error", error.code))

    def _told(self, kind: str, content: bytes, *headers: tuple[str, str]) -> SnapshotMessage:
        return SnapshotMessage(
            destination=self.topic,
            id=self._name(kind),
            payload=creek.packet(content),
            headers=headers,
        )

    def _name(self, kind: str) -> str:
        return f"{self.id}-{kind}"

    def outstanding(self, sink: NatsSink) -> int:
        """As many as changes may be."""
        return sink.max_outstanding

    def fingerprint(self, edition: SnapshotJob) -> str:
        """The schema's: the header has named it."""
        return creek.row(edition.table.relation, edition.table.types).name


def _packets(edition: SnapshotJob, image: Image, count: int) -> pa.BinaryArray:
    if not image:
        # A row without columns has no bytes.
        return _repeated(creek.packet(b""), count)
    return row_messages(read_group(edition.table, edition.snapshot, image, count))


def _repeated(value: bytes, count: int) -> pa.BinaryArray:
    return pa.repeat(pa.scalar(value, pa.binary()), count)


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
