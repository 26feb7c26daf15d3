"""Chunks: thousands of rows in a message, each chunk under a subject of its own; then metadata.

What an earlier attempt stored is known by its subjects. Consumers believe in a snapshot once its
metadata say how many chunks it has, so another one may take its place at any time.
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
from tailrace.snapshot.formats.format import Format, Piece, StoredChunks
from tailrace.snapshot.job import chunk_prefix, meta_prefix
from tailrace.snapshot.rows import read_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.config import NatsSink
    from tailrace.encode.compression import Compression
    from tailrace.errors import TailraceError
    from tailrace.jetstream.bulk.snapshot_messages import SnapshotPublisher
    from tailrace.snapshot.formats.format import Made, Part
    from tailrace.snapshot.job import Form, SnapshotJob

_HEADERS_BYTES = 512
_OUTSTANDING = 16
"""Chunks are large: this many fill any line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked(Format):
    """What chunks have in common, whatever is in them."""

    encoding: Literal["json", "msgpack"]
    """Of the metadata, too."""
    chunk_rows: int
    packing: Compression | None = None

    form: ClassVar[Form]
    replaceable: ClassVar[bool] = True

    @property
    def path(self) -> str:
        """The table in subjects."""
        return table_path(self.table.namespace, self.table.name)

    @property
    def subject(self) -> str:
        """What the subjects of its chunks begin with."""
        return f"{chunk_prefix(self.form)}.{self.path}.{self.id}."

    @property
    def dictionary(self) -> str:
        """The key of its dictionary in the bucket `dictionaries`."""
        return f"{self.id}.{self.packing.number if self.packing else 0}"

    def body(self, part: Part) -> Iterator[Piece]:
        """A chunk at a time."""
        for chunk in self._chunks(part):
            messages = self._parcel(part.edition, chunk).batch
            yield Piece(messages=messages, rows=chunk.rows, beyond=chunk.number + 1)

    @abstractmethod
    def _chunks(self, part: Part) -> Iterator[EncodedChunk]: ...

    def _headers(self, edition: SnapshotJob) -> list[tuple[str, str]]:
        del edition
        return []

    def _parcel(self, edition: SnapshotJob, chunk: EncodedChunk) -> SnapshotMessage:
        payload, headers = chunk.payload, self._headers(edition)
        if self.packing is not None:
            payload = self.packing.compress(payload)
            headers.append(("Content-Encoding", "zstd"))
            if self.packing.number:
                headers.append(("Tailrace-Dictionary", self.dictionary))
        return SnapshotMessage(
            destination=f"{self.subject}{chunk.number}",
            id=f"{self.id}-{chunk.number}",
            payload=payload,
            headers=tuple(headers),
        )

    def stored(self, parcels: SnapshotPublisher, number: int, after: int) -> StoredChunks:
        """All chunks that are there."""
        del number, after
        subjects = [subject.encode() for subject in parcels.stored(f"{self.subject}>")]
        return StoredChunks("destination", pa.array(subjects, pa.binary()))

    def tail(self, edition: SnapshotJob, made: Made) -> SnapshotMessage:
        """The metadata: how many chunks there are, and what the snapshot sees."""
        snapshot = edition.snapshot
        return self._told(
            "meta",
            {
                "snapshot_id": self.id,
                "lsn": str(snapshot.lsn),
                "timestamp": int(snapshot.taken_at.timestamp()),
                "batch_count": made.chunks,
                "row_count": made.rows,
                "table": self.table.name,
                "schema": self.table.namespace,
                "visibility": str(snapshot.visibility),
                "since": snapshot.since.isoformat() if snapshot.since else None,
                "format": self.form,
                "supersedes": made.supersedes or None,
            },
        )

    def ended(self, parcels: SnapshotPublisher) -> bool:
        """Whether the metadata are there, and nobody else's behind them."""
        return parcels.last_id(self._meta) == f"{self.id}-meta"

    def failed(self, error: TailraceError) -> SnapshotMessage:
        """An error in place of the metadata."""
        return self._told(
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

    def _told(self, kind: str, fields: dict[str, Any]) -> SnapshotMessage:
        payload = orjson.dumps(fields) if self.encoding == "json" else ormsgpack.packb(fields)
        return SnapshotMessage(destination=self._meta, id=f"{self.id}-{kind}", payload=payload)

    @property
    def _meta(self) -> str:
        return f"{meta_prefix(self.form)}.{self.path}"

    def outstanding(self, sink: NatsSink) -> int:
        """Few."""
        return min(_OUTSTANDING, sink.max_outstanding)

    def fingerprint(self, edition: SnapshotJob) -> str:
        """How rows are cut into chunks: one that is stored stands for the same rows."""
        del edition
        return f"{self.encoding} {self.chunk_rows} {self.packing is not None}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Chunked):
    """Rows in the pipeline's encoding."""

    form: ClassVar[Form] = "rows"

    def _chunks(self, part: Part) -> Iterator[EncodedChunk]:
        edition = part.edition
        facts = {
            "table": self.table.name,
            "schema": self.table.namespace,
            "operation": "snapshot",
            "snapshot_id": self.id,
            "lsn": str(edition.snapshot.lsn),
        }
        chunker = Chunker(
            facts,
            encoding=self.encoding,
            most_rows=self.chunk_rows,
            most_bytes=part.most_bytes,
            number=part.number,
            step=part.step,
        )
        for count, image in copy(part.connection, part.select, len(edition.columns)):
            yield from chunker.take(read_group(edition.table, edition.snapshot, image, count))
        yield from chunker.rest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied(Chunked):
    """Rows as they come from COPY, for those who hand them to another one."""

    form: ClassVar[Form] = "copy"

    def _chunks(self, part: Part) -> Iterator[EncodedChunk]:
        edition = part.edition
        number = part.number
        # Beside the headers there is the message's id.
        room = part.most_bytes - _HEADERS_BYTES - len(json.dumps(edition.columns))
        found = lines(part.connection, part.select, most_rows=self.chunk_rows, most_bytes=room)
        for rows, text in found:
            yield EncodedChunk(number=number, rows=rows, payload=bytes(text))
            number += part.step

    def _headers(self, edition: SnapshotJob) -> list[tuple[str, str]]:
        return [("Tailrace-Columns", json.dumps(edition.columns))]
