"""Record batches of producers as rows, and rows as record batches for consumers.

This module reads the batch header and its checksum, so that a batch that is damaged, or too large
after decompression, is never parsed. `aiokafka`'s compiled codec reads and writes the records.
Arrow decompresses, because it stops after a given number of bytes.
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

from tailrace.broker.tables.headers import from_json, to_json
from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Sequence

Header = tuple[str, bytes | None]

# A record batch of version 2: base offset, length, leader epoch, magic, checksum, attributes, last
# offset delta, first and max timestamp, producer id, producer epoch, base sequence, record count.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_AFTER_LENGTH, _AFTER_CRC = 12, 21
_MAGIC = 2
_CODEC, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_CODECS = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY = 2
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEADER = 16
_EPOCH_US = 946_684_800_000_000
"""PostgreSQL counts microseconds from 2000-01-01."""
_MIN_MS, _MAX_MS = -62_135_596_800_000, 253_402_300_799_999
"""0001-01-01 to 9999-12-31: what Python and PostgreSQL both can hold."""
MAX_RECORDS = 100_000
"""Max records of a batch. Empty records compress so well that the size is no limit."""
RECORD_BYTES = 800
"""Memory per record beside its key and value. Measured: 110 bytes parsed, 720 while its row is
built, most of it in `bytes.join`."""
_LARGE_RECORDS, _LARGE_BYTES = 1000, 256 << 10
_NO_HEADERS: list[Header] = []
_NULL = struct.pack(">i", -1)
_FIELDS = struct.Struct(">hiiiiiqiq")
_SIZE = struct.Struct(">i")
SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = struct.pack(">h", -1)

Row = tuple[int, int, bytes | None, bytes | None, list[list[object]] | None]
"""Offset, milliseconds, key, value, headers as the table has them."""


class BadBatchError(MalformedError):
    """An invalid record batch. `kafka_error` is the name of Kafka's error code for it."""

    def __init__(
        self, message: str, *, hint: str = "", kafka_error: str = "corrupt_message"
    ) -> None:
        super().__init__(message, hint=hint)
        self.kafka_error = kafka_error


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
    def memory_bytes(self) -> int:
        """The memory that it uses until it is written."""
        return self.size + RECORD_BYTES * len(self.records)

    @property
    def large(self) -> bool:
        """Whether to build its rows takes so long that the event loop must not wait for it."""
        return len(self.records) > _LARGE_RECORDS

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record. Numbers wrap from 2**31 - 1 to 0."""
        return (self.sequence + len(self.records) - 1) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What it takes to parse a batch, according to its header."""

    memory_bytes: int
    """An upper bound."""
    large: bool
    """Parsing takes so long that the event loop must not wait for it."""


def cost(data: bytes, *, max_bytes: int) -> Cost:
    """What it takes to parse a batch. An error if its header claims too many records."""
    fields = _unpack_header(data)
    attributes, count = fields[5], fields[12]
    if count > MAX_RECORDS:
        raise BadBatchError(
            f"record batch has {count:,} records, max is {MAX_RECORDS:,}",
            kafka_error="message_too_large",
        )
    size = max_bytes if attributes & _CODEC else len(data)
    return Cost(
        memory_bytes=size + RECORD_BYTES * max(count, 0),
        large=count > _LARGE_RECORDS or len(data) > _LARGE_BYTES,
    )


def _unpack_header(data: bytes) -> tuple[int, ...]:
    if len(data) < _HEADER.size:
        raise BadBatchError(f"record batch of {len(data)} bytes is shorter than its header")
    fields = _HEADER.unpack_from(data)
    if fields[3] != _MAGIC:
        raise BadBatchError(
            f"record batch version {fields[3]} is not supported",
            kafka_error="unsupported_for_message_format",
        )
    return fields


def parse(data: bytes, *, max_bytes: int) -> Batch:
    """The records of a batch. A producer sends exactly one batch per partition."""
    fields = _unpack_header(data)
    attributes = fields[5]
    producer_id, producer_epoch, sequence, count = fields[9:]
    _check_header(data, fields)
    if codec := attributes & _CODEC:
        body = _decompress(data[_HEADER.size :], codec, max_bytes)
        # The checksum is not read again, so only the attributes have to say "not compressed".
        plain = struct.pack(">h", attributes & ~_CODEC)
        data = data[:_AFTER_CRC] + plain + data[_AFTER_CRC + 2 : _HEADER.size] + body
    try:
        records = tuple(
            (record.timestamp, record.key, record.value, record.headers or _NO_HEADERS)
            for record in DefaultRecordBatch(data)
        )
    except (CorruptRecordException, UnicodeDecodeError, ValueError, IndexError) as error:
        raise BadBatchError(f"cannot parse record batch: {error}") from error
    if len(records) != count:
        raise BadBatchError(f"record batch has {len(records)} records, its header says {count}")
    if not all(_MIN_MS <= record[0] <= _MAX_MS for record in records):
        raise BadBatchError(
            "timestamp is outside of PostgreSQL's range", kafka_error="invalid_timestamp"
        )
    if any("\0" in name for record in records for name, _ in record[3]):
        raise BadBatchError("name of a header contains NUL", kafka_error="invalid_record")
    return Batch(
        records=records,
        size=len(data),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
    )


def _check_header(data: bytes, fields: tuple[int, ...]) -> None:
    _, length, _, _, checksum, attributes, last_delta = fields[:7]
    count = fields[12]
    if length + _AFTER_LENGTH != len(data):
        raise BadBatchError(
            "a request must have one record batch per partition", kafka_error="invalid_record"
        )
    if crc32c(memoryview(data)[_AFTER_CRC:]) != checksum:
        raise BadBatchError("checksum of a record batch does not match")
    if attributes & (_TRANSACTIONAL | _CONTROL):
        raise BadBatchError("transactions are not supported", kafka_error="invalid_txn_state")
    # Compression of a thousand to one is possible; a larger count cannot be true.
    if count < 1 or count > len(data) * 1024 or last_delta != count - 1:
        raise BadBatchError(
            f"record batch has an invalid record count {count}", kafka_error="invalid_record"
        )


def _decompress(data: bytes, codec: int, max_bytes: int) -> bytes:
    try:
        if codec == _SNAPPY:
            plain = _snappy(data, max_bytes)
        elif codec in _CODECS:
            stream = pa.CompressedInputStream(pa.BufferReader(data), _CODECS[codec])
            plain = stream.read(max_bytes + 1)
        else:
            raise BadBatchError(
                f"unknown compression type {codec}", kafka_error="unsupported_compression_type"
            )
    except (OSError, pa.ArrowException) as error:
        raise BadBatchError(f"cannot decompress record batch: {error}") from error
    if len(plain) > max_bytes:
        raise _too_large(max_bytes)
    return plain


def _too_large(max_bytes: int) -> BadBatchError:
    return BadBatchError(
        f"record batch exceeds {max_bytes:,} bytes after decompression",
        kafka_error="message_too_large",
    )


def _snappy(data: bytes, max_bytes: int) -> bytes:
    """One raw block, or the framed blocks of the Java library (xerial)."""
    if not data.startswith(_XERIAL):
        return _snappy_block(data, max_bytes)
    blocks, at, total = [], _XERIAL_HEADER, 0
    while at < len(data):
        (size,) = _SIZE.unpack_from(data.ljust(at + 4, b"\0"), at)
        block = data[at + 4 : at + 4 + size]
        if size < 1 or len(block) != size:
            raise BadBatchError("snappy block is truncated")
        blocks.append(_snappy_block(block, max_bytes - total))
        total += len(blocks[-1])
        at += 4 + size
    return b"".join(blocks)


def _snappy_block(data: bytes, max_bytes: int) -> bytes:
    # A raw block begins with its decompressed size as a varint.
    size = shift = at = 0
    while at < min(len(data), 5):
        size |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            break
    if size > max_bytes:
        raise _too_large(max_bytes)
    return bytes(pa.decompress(data, decompressed_size=size, codec="snappy", asbytes=True))


def copy_rows(batch: Batch, topic_id: int, partition: int, first: int) -> bytes:
    """The rows of a batch for binary COPY, with offsets from `first` on."""
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
            text = b"\x01" + orjson.dumps([[name, to_json(content)] for name, content in headers])
            add(size(len(text)))
            add(text)
        else:
            add(_NULL)
        offset += 1
    return b"".join(parts)


def build_batch(rows: Sequence[Row]) -> bytes:
    """One batch of rows in order of their offsets, which may have gaps."""
    first = rows[0][0]
    builder = DefaultRecordBatchBuilder(
        magic=_MAGIC, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1 << 31,
    )  # fmt: skip
    append = builder.append
    for offset, timestamp, key, value, headers in rows:
        pairs = [(name, from_json(content)) for name, content in headers] if headers else []
        append(offset - first, timestamp, key, value, pairs)
    data = builder.build()
    _BASE_OFFSET.pack_into(data, 0, first)
    return bytes(data)


def with_base_offset(data: bytes, first: int) -> bytes:
    """A producer's batch with its base offset, which the checksum does not cover."""
    return _BASE_OFFSET.pack(first) + data[_BASE_OFFSET.size :]
