"""Record batches of producers as rows, and rows as record batches for consumers.

The batch header and its checksum are read here, so that nothing is taken apart that is damaged or
too large once it is unpacked; `aiokafka`'s compiled codec does the records themselves. What a
client has compressed is unpacked by Arrow, which reads no further than it is asked to.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c

from tailrace.broker.tables.headers import meant, shown
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_AFTER_LENGTH, _AFTER_CRC = 12, 21
_MAGIC = 2
_CODEC, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_CODECS = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY = 2
_XERIAL = b"\x82SNAPPY\0"
_EPOCH_US = 946_684_800_000_000
_LEAST_MS, _MOST_MS = -62_135_596_800_000, 253_402_300_799_999
_NULL = struct.pack(">i", -1)
_FIELDS = struct.Struct(">hiiiiiqiq")
_SIZE = struct.Struct(">i")
SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = struct.pack(">h", -1)

Header = tuple[str, bytes | None]
Row = tuple[int, int, bytes | None, bytes | None, list[list[object]] | None]
"""Offset, milliseconds, key, value, headers as the table has them."""


class BadBatchError(TailraceError):
    """A record batch that is not as it should be; `kind` is Kafka's name for it."""

    def __init__(self, message: str, *, kind: str = "corrupt_message") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The records of a batch as a producer sent them."""

    records: tuple[tuple[int, bytes | None, bytes | None, list[Header]], ...]
    """Milliseconds, key, value, headers."""
    size: int
    producer_id: int
    producer_epoch: int
    sequence: int

    @property
    def last_sequence(self) -> int:
        """Of its last record; numbers start again at 0 behind the largest."""
        return (self.sequence + len(self.records) - 1) & 0x7FFFFFFF


def parse(data: bytes, *, most_bytes: int) -> Batch:
    """The one batch that a producer sends for a partition."""
    if len(data) < _HEADER.size:
        raise BadBatchError(f"a record batch of {len(data)} bytes")
    fields = _HEADER.unpack_from(data)
    _, length, _, magic, checksum, attributes, last_delta = fields[:7]
    producer_id, producer_epoch, sequence, count = fields[9:]
    if magic != _MAGIC:
        raise BadBatchError(
            f"record batches of version {magic}", kind="unsupported_for_message_format"
        )
    if length + _AFTER_LENGTH != len(data):
        raise BadBatchError("one record batch a partition is taken", kind="invalid_record")
    if crc32c(memoryview(data)[_AFTER_CRC:]) != checksum:
        raise BadBatchError("the checksum of a record batch is wrong")
    if attributes & (_TRANSACTIONAL | _CONTROL):
        raise BadBatchError("transactions are not served", kind="invalid_txn_state")
    if count < 1 or count > len(data) * 1024 or last_delta != count - 1:
        raise BadBatchError(f"a batch of {count} records", kind="invalid_record")
    if codec := attributes & _CODEC:
        body = _unpacked(data[_HEADER.size :], codec, most_bytes)
        data = data[: _HEADER.size] + body
        data = data[:_AFTER_CRC] + struct.pack(">h", attributes & ~_CODEC) + data[_AFTER_CRC + 2 :]
    try:
        records = tuple(
            (record.timestamp, record.key, record.value, record.headers)
            for record in DefaultRecordBatch(data)
        )
    except (CorruptRecordException, UnicodeDecodeError, ValueError, IndexError) as error:
        raise BadBatchError(f"a record batch that cannot be read: {error}") from error
    if len(records) != count:
        raise BadBatchError(f"{len(records)} records where there should be {count}")
    if not all(_LEAST_MS <= record[0] <= _MOST_MS for record in records):
        raise BadBatchError("a timestamp that PostgreSQL cannot hold", kind="invalid_timestamp")
    if any("\0" in name for record in records for name, _ in record[3]):
        raise BadBatchError("a header whose name has a NUL", kind="invalid_record")
    return Batch(
        records=records,
        size=len(data),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
    )


def _unpacked(data: bytes, codec: int, most_bytes: int) -> bytes:
    try:
        if codec == _SNAPPY:
            found = _snappy(data, most_bytes)
        elif codec in _CODECS:
            stream = pa.CompressedInputStream(pa.BufferReader(data), _CODECS[codec])
            found = stream.read(most_bytes + 1)
        else:
            raise BadBatchError(f"compression {codec}", kind="unsupported_compression_type")
    except (OSError, pa.ArrowException) as error:
        raise BadBatchError(f"a record batch that cannot be unpacked: {error}") from error
    if len(found) > most_bytes:
        raise BadBatchError(f"over {most_bytes:,} bytes unpacked", kind="message_too_large")
    return found


def _snappy(data: bytes, most_bytes: int) -> bytes:
    """Bare, or in the blocks of the Java library."""
    if not data.startswith(_XERIAL):
        return _snappy_block(data, most_bytes)
    blocks, at, total = [], 16, 0
    while at < len(data):
        (size,) = _SIZE.unpack_from(data.ljust(at + 4, b"\0"), at)
        block = data[at + 4 : at + 4 + size]
        if size < 1 or len(block) != size:
            raise BadBatchError("a block of snappy that is cut off")
        blocks.append(_snappy_block(block, most_bytes - total))
        total += len(blocks[-1])
        at += 4 + size
    return b"".join(blocks)


def _snappy_block(data: bytes, most_bytes: int) -> bytes:
    size = shift = at = 0
    while at < min(len(data), 5):
        size |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            break
    if size > most_bytes:
        raise BadBatchError(f"over {most_bytes:,} bytes unpacked", kind="message_too_large")
    return bytes(pa.decompress(data, decompressed_size=size, codec="snappy", asbytes=True))


def copied(batch: Batch, topic_id: int, partition: int, first: int) -> bytes:
    """The rows of a batch as binary COPY takes them, from an offset on."""
    parts: list[bytes] = []
    add, pack, size = parts.append, _FIELDS.pack, _SIZE.pack
    offset = first
    for timestamp, key, value, headers in batch.records:
        micros = timestamp * 1000 - _EPOCH_US
        add(pack(7, 4, topic_id, 4, partition, 8, offset, 8, micros))
        for cell in (key, value):
            if cell is None:
                add(_NULL)
            else:
                add(size(len(cell)))
                add(cell)
        if headers:
            text = b"\x01" + orjson.dumps([[name, shown(held)] for name, held in headers])
            add(size(len(text)))
            add(text)
        else:
            add(_NULL)
        offset += 1
    return b"".join(parts)


def built(rows: Sequence[Row]) -> bytes:
    """One batch of rows in order of their offsets, which may have holes."""
    first = rows[0][0]
    builder = DefaultRecordBatchBuilder(
        magic=_MAGIC, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1 << 31,
    )  # fmt: skip
    append = builder.append
    for offset, timestamp, key, value, headers in rows:
        found = [(name, meant(held)) for name, held in headers] if headers else []
        append(offset - first, timestamp, key, value, found)
    data = builder.build()
    _BASE_OFFSET.pack_into(data, 0, first)
    return bytes(data)


def moved(data: bytes, first: int) -> bytes:
    """A producer's own batch at the offset it was given. The checksum does not cover that."""
    return _BASE_OFFSET.pack(first) + data[_BASE_OFFSET.size :]
