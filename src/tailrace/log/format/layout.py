"""Segment headers and entries as bytes. Pure: buffers to values and back.

All integers are little-endian. CRC32C covers every header and body. Lengths are checked against
the available bytes and a maximum before anything is allocated. `MalformedError` is the only error;
the caller knows where the bytes were and decides whether it is a torn tail or corruption.
"""

from __future__ import annotations

import enum
import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import zstandard
from crc32c import crc32c

from tailrace.errors import MalformedError
from tailrace.log.format.entry import Entry, Kind
from tailrace.position import Lsn, Position

VERSION = 1
SEGMENT_MAGIC = b"TAILRACE"
ENTRY_MAGIC = b"TRen"
MAX_BODY_BYTES = (1 << 31) - (1 << 16)
"""A row has at most about 1 GB on the wire, so a valid entry stays below 2 GB. One read returns it:
Linux reads at most 2³¹ - 4096 bytes at a time."""

_SEGMENT = struct.Struct("<8sHHII")
_ENTRY = struct.Struct("<4sBBBBIIIIIIIIQQQQQQqq")
_CRC_AT = 8
_MAX_IDENTITY_BYTES = 1 << 16
_BEGINS, _ENDS = 1, 2
_UNSIGNED, _SIGNED = (0, (1 << 64) - 1), (-(1 << 63), (1 << 63) - 1)
_OTHER_RELEASE = "Read the log with the release that wrote it, or upgrade."

SEGMENT_HEADER_BYTES = _SEGMENT.size
ENTRY_HEADER_BYTES = _ENTRY.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The source of a log's changes. Every segment repeats it."""

    system_identifier: str
    timeline: int
    database: str
    slot: str
    publication: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The header of a segment: identity, and where in the stream the segment begins."""

    identity: Identity
    log_id: str
    """The id of the log, the same in all of its segments. Positions are of one log: the LSNs of
    another one may mean other changes. Empty in logs that were created without an id."""
    sequence: int
    epoch: int
    base: Position
    """The last position before this segment."""
    base_end_lsn: Lsn
    base_time: int
    created_at: str

    def encode(self) -> bytes:
        """Fixed part, then the identity as JSON."""
        fields = asdict(self.identity) | {
            "sequence": self.sequence,
            "epoch": self.epoch,
            "base": str(self.base),
            "base_end_lsn": str(self.base_end_lsn),
            "base_time": self.base_time,
            "created_at": self.created_at,
        }
        fields |= {"log_id": self.log_id} if self.log_id else {}
        text = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
        blank = _SEGMENT.pack(SEGMENT_MAGIC, VERSION, 0, len(text), 0)
        return (
            _SEGMENT.pack(SEGMENT_MAGIC, VERSION, 0, len(text), crc32c(text, crc32c(blank))) + text
        )


def segment_header_bytes(fixed: bytes) -> int:
    """The length of the whole header, read from its fixed part."""
    if len(fixed) < SEGMENT_HEADER_BYTES:
        raise MalformedError("the segment ends inside its header")
    magic, version, _, length, _ = _SEGMENT.unpack_from(fixed)
    if magic != SEGMENT_MAGIC:
        raise MalformedError("not a Tailrace segment: it does not begin with the magic bytes")
    if version != VERSION:
        raise MalformedError(
            f"segment format version {version}; this release reads version {VERSION}",
            hint=_OTHER_RELEASE,
        )
    if length > _MAX_IDENTITY_BYTES:
        raise MalformedError(f"the segment header claims {length} bytes of identity")
    return SEGMENT_HEADER_BYTES + int(length)


def decode_segment_header(data: bytes) -> SegmentHeader:
    """Read a segment header of `segment_header_bytes` bytes."""
    size = segment_header_bytes(data)
    if len(data) < size:
        raise MalformedError("the segment ends inside its header")
    magic, version, spare, length, crc = _SEGMENT.unpack_from(data)
    text = data[SEGMENT_HEADER_BYTES:size]
    if crc != crc32c(text, crc32c(_SEGMENT.pack(magic, version, spare, length, 0))):
        raise MalformedError("the checksum of the segment header does not match")
    try:
        return _identity_from(json.loads(text))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise MalformedError(f"the identity in the segment header is invalid: {error}") from error


def _identity_from(fields: dict[str, Any]) -> SegmentHeader:
    return SegmentHeader(
        identity=Identity(
            system_identifier=_text(fields, "system_identifier"),
            timeline=_number(fields, "timeline", _UNSIGNED),
            database=_text(fields, "database"),
            slot=_text(fields, "slot"),
            publication=_text(fields, "publication"),
        ),
        log_id=_text(fields, "log_id") if "log_id" in fields else "",
        sequence=_number(fields, "sequence", _UNSIGNED),
        epoch=_number(fields, "epoch", _UNSIGNED),
        base=_position(fields, "base"),
        base_end_lsn=Lsn.parse(_text(fields, "base_end_lsn")),
        base_time=_number(fields, "base_time", _SIGNED),
        created_at=_text(fields, "created_at"),
    )


def _text(fields: dict[str, Any], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is not a string")
    value.encode()  # Refuses lone surrogates, which cannot be printed.
    return value


def _number(fields: dict[str, Any], key: str, span: tuple[int, int]) -> int:
    value = fields[key]
    if type(value) is not int or not span[0] <= value <= span[1]:
        raise TypeError(f"{key} is not a number of 64 bits")
    return value


def _position(fields: dict[str, Any], key: str) -> Position:
    position = Position.parse(_text(fields, key))
    if position.ordinal > _UNSIGNED[1]:
        raise ValueError(f"{key} has an ordinal of more than 64 bits")
    return position


class Codec(enum.IntEnum):
    """How a body is stored: plain, or compressed with zstd."""

    NONE = 0
    ZSTD = 1


_KINDS = frozenset(Kind)
_CODECS = frozenset(Codec)


@dataclass(frozen=True, slots=True)
class Frame:
    """An entry's header as stored: enough to walk a segment without reading bodies."""

    stored_bytes: int
    raw_bytes: int
    codec: int
    messages: int
    crc: int
    entry: Entry
    """All header fields; offsets and body still empty."""

    @property
    def total_bytes(self) -> int:
        """Header and body on disk."""
        return ENTRY_HEADER_BYTES + self.stored_bytes


def encode_entry(entry: Entry, *, epoch: int, codec: int = Codec.NONE) -> list[bytes]:
    """The buffers of an entry, in the order they are written."""
    table = entry.offsets.astype("<u4", copy=False).tobytes()
    raw_bytes = len(table) + len(entry.body)
    body = [table, entry.body]
    if codec == Codec.ZSTD:
        body = [zstandard.ZstdCompressor(level=1).compress(b"".join(body))]
    stored_bytes = sum(map(len, body))
    if raw_bytes > MAX_BODY_BYTES or stored_bytes > MAX_BODY_BYTES:
        raise MalformedError(
            f"an entry has {raw_bytes} bytes, the format allows at most {MAX_BODY_BYTES}"
        )

    def header(crc: int) -> bytes:
        return _ENTRY.pack(
            ENTRY_MAGIC, VERSION, entry.kind, entry.begins * _BEGINS | entry.ends * _ENDS, codec,
            crc, stored_bytes, raw_bytes, len(entry.offsets) - 1,
            entry.changes, entry.transactions, entry.schemas, entry.xid,
            epoch, entry.first.lsn, entry.first.ordinal, entry.last.lsn, entry.last.ordinal,
            entry.end_lsn, entry.first_time, entry.last_time,
        )  # fmt: skip

    crc = crc32c(header(0))
    for part in body:
        crc = crc32c(part, crc)
    return [header(crc), *body]


def decode_frame(header: bytes) -> Frame:
    """Read an entry's header. Its checksum covers the body too, so nothing is proven yet."""
    if len(header) < ENTRY_HEADER_BYTES:
        raise MalformedError("the segment ends inside an entry's header")
    (
        magic, version, kind, flags, codec, crc, stored_bytes, raw_bytes, messages,
        changes, transactions, schemas, xid, epoch, first_lsn, first_ordinal, last_lsn,
        last_ordinal, end_lsn, first_time, last_time,
    ) = _ENTRY.unpack_from(header)  # fmt: skip
    if magic != ENTRY_MAGIC:
        raise MalformedError("no entry begins here: the magic bytes are missing")
    if version != VERSION:
        raise MalformedError(
            f"entry format version {version}; this release reads version {VERSION}",
            hint=_OTHER_RELEASE,
        )
    if kind not in _KINDS or codec not in _CODECS or flags > _BEGINS | _ENDS:
        raise MalformedError(f"unknown entry kind {kind}, codec {codec} or flags {flags}")
    if stored_bytes > MAX_BODY_BYTES or raw_bytes > MAX_BODY_BYTES:
        raise MalformedError(f"an entry claims {max(stored_bytes, raw_bytes)} bytes")
    if 4 * (messages + 1) > raw_bytes:
        raise MalformedError(f"an entry of {raw_bytes} bytes claims {messages} messages")
    entry = Entry(
        kind=Kind(kind),
        first=Position(Lsn(first_lsn), first_ordinal),
        last=Position(Lsn(last_lsn), last_ordinal),
        end_lsn=Lsn(end_lsn),
        first_time=first_time,
        last_time=last_time,
        xid=xid,
        begins=bool(flags & _BEGINS),
        ends=bool(flags & _ENDS),
        transactions=transactions,
        changes=changes,
        schemas=schemas,
        epoch=epoch,
        offsets=np.zeros(1, np.uint32),
        body=b"",
    )
    return Frame(stored_bytes, raw_bytes, codec, messages, crc, entry)


def decode_entry(frame: Frame, header: bytes, stored: bytes | memoryview) -> Entry:
    """Check the checksum over header and body, then decompress and split the body."""
    blank = bytearray(header[:ENTRY_HEADER_BYTES])
    blank[_CRC_AT : _CRC_AT + 4] = b"\0\0\0\0"
    if len(stored) != frame.stored_bytes or crc32c(stored, crc32c(bytes(blank))) != frame.crc:
        raise MalformedError("the checksum of an entry does not match")
    raw = _inflate(frame, stored)
    table_bytes = 4 * (frame.messages + 1)
    offsets = np.frombuffer(raw, "<u4", frame.messages + 1)
    body = bytes(memoryview(raw)[table_bytes:])
    if offsets[0] != 0 or offsets[-1] != len(body) or (offsets[1:] <= offsets[:-1]).any():
        raise MalformedError("the offset table of an entry does not match its body")
    head = frame.entry
    return Entry(
        kind=head.kind, first=head.first, last=head.last, end_lsn=head.end_lsn,
        first_time=head.first_time, last_time=head.last_time, xid=head.xid,
        begins=head.begins, ends=head.ends, transactions=head.transactions,
        changes=head.changes, schemas=head.schemas, epoch=head.epoch,
        offsets=offsets.astype(np.uint32, copy=False), body=body,
    )  # fmt: skip


def _inflate(frame: Frame, stored: bytes | memoryview) -> bytes | memoryview:
    if frame.codec == Codec.NONE:
        if frame.stored_bytes != frame.raw_bytes:
            raise MalformedError("an uncompressed entry claims two different lengths")
        return stored
    try:
        # zstandard ignores `max_output_size` if the frame states its size, and allocates all of it
        # at once if it does not. So the frame must state the size that the header claims.
        if zstandard.frame_content_size(stored) != frame.raw_bytes:
            raise MalformedError("the compressed body of an entry has another length than claimed")
        return zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedError(f"the compressed body of an entry is invalid: {error}") from error
