"""The messages of a snapshot: metadata on `init.meta.TABLE`, rows in chunks, and failures."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import orjson
import zstandard

from tailrace.client.payload import decode
from tailrace.errors import ConfigError, MalformedError, PositionLostError, SinkRefusedError
from tailrace.position import Lsn
from tailrace.snapshot.job import chunk_prefix, meta_prefix
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.client.access import Access
    from tailrace.client.names import Table
    from tailrace.client.payload import Encoding
    from tailrace.client.readers.reader import StreamMessage
    from tailrace.snapshot.job import Form

CHUNKS_PER_REQUEST = 16
"""Chunks hold up to a megabyte each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """The metadata of a complete snapshot."""

    snapshot_id: str
    lsn: Lsn
    """Every transaction that the snapshot sees committed before this LSN."""
    visibility: Visibility
    """The transactions that the snapshot sees."""
    timestamp: datetime
    since: datetime | None
    """Changes that the snapshot does not see were committed after this time. None: unknown."""
    batch_count: int
    row_count: int
    supersedes: str | None
    """The abandoned snapshot that this one replaces."""
    pipeline: str = ""
    """The pipeline that delivers the table's changes. Empty: the snapshot does not name it."""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """Read the message on `init.meta.TABLE`."""
        try:
            since = message["since"]
            return cls(
                snapshot_id=message["snapshot_id"],
                lsn=Lsn.parse(message["lsn"]),
                visibility=Visibility.parse(message["visibility"]),
                timestamp=datetime.fromtimestamp(message["timestamp"], UTC),
                since=datetime.fromisoformat(since) if since else None,
                batch_count=message["batch_count"],
                row_count=message["row_count"],
                supersedes=message["supersedes"],
                pipeline=message.get("pipeline", ""),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"the metadata of a snapshot are invalid: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some thousand rows of a snapshot, still encoded."""

    snapshot_id: str
    number: int
    payload: bytes
    compressed: bool = False
    dictionary: zstandard.ZstdCompressionDict | None = None
    encoding: Encoding | None = None
    columns: tuple[str, ...] | None = None
    """The columns of COPY's text format. None: the rows are a JSON or MessagePack object."""

    def plain(self) -> bytes:
        """The payload, decompressed."""
        if not self.compressed:
            return self.payload
        try:
            return zstandard.ZstdDecompressor(dict_data=self.dictionary).decompress(self.payload)
        except zstandard.ZstdError as error:
            raise MalformedError(f"a chunk cannot be decompressed: {error}") from error

    def rows(self) -> list[dict[str, Any]]:
        """The rows as in the message, without the types of the table's schema."""
        rows: list[dict[str, Any]] = decode(self.plain(), self.encoding)["data"]
        return rows


async def read_chunk(access: Access, snapshot_id: str, message: StreamMessage) -> Chunk:
    """A message as a chunk, with the dictionary that it needs."""
    encoding = message.headers.get("Content-Encoding", "")
    if encoding not in ("", "zstd"):
        raise MalformedError(f"a chunk has the unknown Content-Encoding {encoding!r}")
    key = message.headers.get("Tailrace-Dictionary", "")
    columns = message.headers.get("Tailrace-Columns")
    return Chunk(
        snapshot_id=snapshot_id,
        number=int(message.subject.rpartition(".")[2]),
        payload=message.data,
        compressed=bool(encoding),
        dictionary=await access.dictionary(key) if key else None,
        encoding=access.encoding,
        columns=None if columns is None else tuple(orjson.loads(columns)),
    )


def chunk_subject(table: Table, snapshot_id: str, form: Form) -> str:
    """The subjects of a snapshot's chunks."""
    return f"{chunk_prefix(form)}.{table.path}.{snapshot_id}.*"


def meta_subject(table: Table, form: Form) -> str:
    """The subject of the metadata of a table's snapshots."""
    return f"{meta_prefix(form)}.{table.path}"


def refusal(message: Mapping[str, Any]) -> ConfigError | SinkRefusedError:
    """The error that the snapshot service reports."""
    kind = ConfigError if message.get("code") == ConfigError.code else SinkRefusedError
    return kind(str(message["error"]), hint=str(message.get("hint", "")))


def incomplete(meta: Meta, chunks: int) -> PositionLostError:
    """The error for a snapshot whose stream does not have all chunks."""
    return PositionLostError(
        f"snapshot {meta.snapshot_id} has {meta.batch_count} chunks, the stream has only {chunks}",
        hint="Retention has removed some. Request the snapshot again, and raise the retention of "
        "the stream of snapshots.",
    )
