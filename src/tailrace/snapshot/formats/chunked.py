"""Chunked snapshots: thousands of rows per message, one subject per chunk, then metadata.

Chunks that an earlier attempt stored are recognized by their subjects. Consumers use a snapshot
once its metadata state the number of chunks, so another snapshot may replace it until then.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import orjson
import ormsgpack
import pyarrow as pa

from tailrace.encode.chunks import Chunker, EncodedChunk
from tailrace.jetstream.bulk.snapshot_messages import SnapshotMessage
from tailrace.jetstream.names import table_path
from tailrace.snapshot.copy import copy, lines
from tailrace.snapshot.formats.format import Format, Piece, StoredMessages
from tailrace.snapshot.job import chunk_prefix, meta_prefix
from tailrace.snapshot.rows import read_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.encode.compression import Compression
    from tailrace.errors import TailraceError
    from tailrace.jetstream.bulk.snapshot_messages import SnapshotPublisher
    from tailrace.jetstream.settings import JetStreamSettings
    from tailrace.snapshot.formats.format import Part, SnapshotTotals
    from tailrace.snapshot.job import Form, SnapshotJob

_HEADERS_BYTES = 512
_OUTSTANDING = 16
"""Chunks are large: this many keep any connection busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked(Format):
    """What all chunked formats share, independent of the chunks' content."""

    encoding: Literal["json", "msgpack"]
    """Encoding of the rows and of the metadata."""
    chunk_rows: int
    compression: Compression | None = None

    form: ClassVar[Form]
    replaceable: ClassVar[bool] = True

    @property
    def path(self) -> str:
        """The table as subject tokens."""
        return table_path(self.table.namespace, self.table.name)

    @property
    def subject(self) -> str:
        """The prefix of the chunks' subjects."""
        return f"{chunk_prefix(self.form)}.{self.path}.{self.id}."

    @property
    def dictionary(self) -> str:
        """The key of its dictionary in the bucket `dictionaries`."""
        return f"{self.id}.{self.compression.number if self.compression else 0}"

    def body(self, part: Part) -> Iterator[Piece]:
        """One message per chunk."""
        for chunk in self._chunks(part):
            messages = self._message(part.job, chunk).batch
            yield Piece(messages=messages, rows=chunk.rows, beyond=chunk.number + 1)

    @abstractmethod
    def _chunks(self, part: Part) -> Iterator[EncodedChunk]: ...

    def _headers(self, job: SnapshotJob) -> list[tuple[str, str]]:
        del job
        return []

    def _message(self, job: SnapshotJob, chunk: EncodedChunk) -> SnapshotMessage:
        payload, headers = chunk.payload, self._headers(job)
        if self.compression is not None:
            payload = self.compression.compress(payload)
            headers.append(("Content-Encoding", "zstd"))
            if self.compression.number:
                headers.append(("Tailrace-Dictionary", self.dictionary))
        return SnapshotMessage(
            destination=f"{self.subject}{chunk.number}",
            id=f"{self.id}-{chunk.number}",
            payload=payload,
            headers=tuple(headers),
        )

    def stored(self, publisher: SnapshotPublisher, number: int, after: int) -> StoredMessages:
        """All chunks of the snapshot in the stream."""
        del number, after
        subjects = [subject.encode() for subject in publisher.stored(f"{self.subject}>")]
        return StoredMessages("destination", pa.array(subjects, pa.binary()))

    def tail(self, job: SnapshotJob, totals: SnapshotTotals) -> SnapshotMessage:
        """The metadata: the number of chunks, and which transactions the snapshot sees."""
        snapshot = job.snapshot
        return self._control(
            "meta",
            {
                "snapshot_id": self.id,
                "lsn": str(snapshot.lsn),
                "timestamp": int(snapshot.taken_at.timestamp()),
                "batch_count": totals.chunks,
                "row_count": totals.rows,
                "table": self.table.name,
                "schema": self.table.namespace,
                "visibility": str(snapshot.visibility),
                "since": snapshot.since.isoformat() if snapshot.since else None,
                "format": self.form,
                "supersedes": totals.supersedes or None,
                "pipeline": self.pipeline,
            },
        )

    def has_tail(self, publisher: SnapshotPublisher) -> bool:
        """Whether the last metadata of the table are this snapshot's."""
        return publisher.last_id(self._meta) == f"{self.id}-meta"

    def failed(self, error: TailraceError, *, begun: bool) -> SnapshotMessage:
        """An error in place of the metadata."""
        del begun
        return self._control(
            "failed",
            {
                "snapshot_id": self.id,
                "table": self.table.name,
                "schema": self.table.namespace,
                "error": str(error),
                "code": error.code,
                "hint": error.hint,
            },
        )

    def _control(self, kind: str, fields: dict[str, Any]) -> SnapshotMessage:
        payload = orjson.dumps(fields) if self.encoding == "json" else ormsgpack.packb(fields)
        return SnapshotMessage(destination=self._meta, id=f"{self.id}-{kind}", payload=payload)

    @property
    def _meta(self) -> str:
        return f"{meta_prefix(self.form)}.{self.path}"

    def outstanding(self, sink: JetStreamSettings) -> int:
        """At most 16: chunks are large."""
        return min(_OUTSTANDING, sink.max_outstanding)

    def fingerprint(self, job: SnapshotJob) -> str:
        """How rows are cut into chunks: a stored chunk must hold the same rows."""
        del job
        return f"{self.encoding} {self.chunk_rows} {self.compression is not None}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Chunked):
    """Chunks of rows in the pipeline's encoding."""

    form: ClassVar[Form] = "rows"

    def _chunks(self, part: Part) -> Iterator[EncodedChunk]:
        job = part.job
        facts = {
            "table": self.table.name,
            "schema": self.table.namespace,
            "operation": "snapshot",
            "snapshot_id": self.id,
            "lsn": str(job.snapshot.lsn),
        }
        chunker = Chunker(
            facts,
            encoding=self.encoding,
            max_rows=self.chunk_rows,
            max_bytes=part.max_bytes,
            number=part.number,
            step=part.step,
        )
        for count, image in copy(part.connection, part.select, len(job.columns)):
            yield from chunker.take(read_group(job.table, job.snapshot, image, count))
        yield from chunker.rest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied(Chunked):
    """Chunks of COPY text, for consumers that pass them to another COPY."""

    form: ClassVar[Form] = "copy"

    def _chunks(self, part: Part) -> Iterator[EncodedChunk]:
        job = part.job
        number = part.number
        # The headers hold the message's id beside the columns.
        payload_bytes = part.max_bytes - _HEADERS_BYTES - len(json.dumps(job.columns))
        blocks = lines(
            part.connection, part.select, max_rows=self.chunk_rows, max_bytes=payload_bytes
        )
        for rows, text in blocks:
            yield EncodedChunk(number=number, rows=rows, payload=bytes(text))
            number += part.step

    def _headers(self, job: SnapshotJob) -> list[tuple[str, str]]:
        return [("Tailrace-Columns", json.dumps(job.columns))]
