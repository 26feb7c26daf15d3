"""Version 2 of the protocol as bytes: frames, and what is in them. Pure: no I/O and no clock.

Every frame is a header of 16 bytes and a payload. A checksum covers both, and a length is checked
before anything is allocated. `docs/formats/replication.md` has the table of types. Control frames
are small JSON documents, so that a later release can add keys; what moves data is binary.
"""

from __future__ import annotations

import enum
import json
import re
import struct
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

import zstandard
from crc32c import crc32c

from tailrace.errors import MalformedError
from tailrace.log.format import mark as marks

if TYPE_CHECKING:
    from tailrace.log.format.mark import Mark

VERSION = 2
CHUNK_BYTES = 1 << 20
"""How much of a file a leader sends in one frame."""
MAX_PAYLOAD_BYTES = (4 << 20) + (64 << 10)

HEADER = struct.Struct("<4sBBHII")
_MAGIC = b"TRrp"
_DIGITS = re.compile("[0-9a-f]{0,64}")
_COMPRESSED = 1
_DATA = struct.Struct("<QQQB")
_OLDEST = struct.Struct("<Q")
_BEAT = struct.Struct("<Qq")
_FETCH = struct.Struct("<Q")
Buffer = bytes | bytearray | memoryview


class Type(enum.IntEnum):
    """What a frame holds."""

    HELLO = 1
    PROOF = 2
    STATE = 3
    BEGIN = 4
    DATA = 5
    MARK = 6
    ACK = 7
    HEARTBEAT = 8
    ERROR = 9
    BUNDLES = 10
    BUNDLE = 11
    CONTENT = 12
    STORED = 13
    FETCH = 20
    PIECE = 21
    FETCHED = 22


_TYPES = frozenset(Type)


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a frame."""

    type: Type
    flags: int
    length: int
    crc: int

    @classmethod
    def decode(cls, data: Buffer) -> Header:
        """From HEADER.size bytes. Raises MalformedError."""
        magic, kind, flags, spare, length, crc = HEADER.unpack(data)
        if magic != _MAGIC:
            raise MalformedError("no frame begins here: the magic bytes are missing")
        if kind not in _TYPES or flags > _COMPRESSED or spare:
            raise MalformedError(f"a frame has the unknown type {kind} or flags {flags}")
        if length > MAX_PAYLOAD_BYTES:
            raise MalformedError(f"a frame claims {length} bytes")
        return cls(Type(kind), flags, length, crc)

    def payload(self, stored: Buffer) -> Buffer:
        """Check the payload and decompress it. Raises MalformedError."""
        blank = HEADER.pack(_MAGIC, self.type, self.flags, 0, self.length, 0)
        if len(stored) != self.length or crc32c(stored, crc32c(blank)) != self.crc:
            raise MalformedError("the checksum of a frame does not match")
        return _inflate(stored) if self.flags & _COMPRESSED else stored


def encode(kind: Type, *parts: Buffer, compress: bool = False) -> bytes:
    """A frame."""
    return b"".join(buffers(kind, *parts, compress=compress))


def buffers(kind: Type, *parts: Buffer, compress: bool = False) -> list[Buffer]:
    """A frame as its header and the parts of its payload, which are not copied."""
    if compress:
        parts = (zstandard.ZstdCompressor(level=1).compress(b"".join(parts)),)
    length = sum(map(len, parts))
    if length > MAX_PAYLOAD_BYTES:
        raise MalformedError(f"a frame of {length} bytes is too long")
    flags = _COMPRESSED if compress else 0
    crc = crc32c(HEADER.pack(_MAGIC, kind, flags, 0, length, 0))
    for part in parts:
        crc = crc32c(part, crc)
    return [HEADER.pack(_MAGIC, kind, flags, 0, length, crc), *parts]


def _inflate(stored: Buffer) -> bytes:
    try:
        # Without a size in the frame, zstandard would allocate whatever the data says.
        size = zstandard.frame_content_size(stored)
        if not 0 <= size <= MAX_PAYLOAD_BYTES:
            raise MalformedError(f"a compressed frame claims {size} bytes")
        return zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedError(f"a compressed frame is invalid: {error}") from error


M = TypeVar("M", bound="Message")


def _frozen(value: object) -> object:
    """A list of JSON as a tuple."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A control frame: a JSON object with a key for each field. Unknown keys are ignored."""

    MAX_BYTES: ClassVar[int] = 1 << 16

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls: type[M], payload: Buffer) -> M:
        """From JSON. Raises MalformedError."""
        name = cls.__name__.upper()
        if len(payload) > cls.MAX_BYTES:
            raise MalformedError(f"a frame {name} has {len(payload)} bytes")
        try:
            content = json.loads(bytes(payload))
            # JSON can escape half of a character, which no file, socket or metric takes.
            json.dumps(content, ensure_ascii=False).encode()
            if not isinstance(content, dict):
                raise TypeError("not an object")
            known = cls._kinds().keys() & content.keys()
            values = {key: _frozen(content[key]) for key in known}
            message = cls(**values)
        except (ValueError, TypeError, RecursionError) as error:
            raise MalformedError(f"a frame {name} is invalid: {error}") from error
        for key, kind in cls._kinds().items():
            value = getattr(message, key)
            if type(value) is not kind:
                raise MalformedError(f"{key} in a frame {name} is not {kind.__name__}")
        message.check()
        return message

    def check(self) -> None:
        """Raise MalformedError for values that their types do not exclude."""

    @classmethod
    def _kinds(cls) -> dict[str, type]:
        # Every field has a default, whose type is that of the field.
        return {each.name: type(each.default) for each in fields(cls)}


def _check_digits(*values: str) -> None:
    if not all(map(_DIGITS.fullmatch, values)):
        raise MalformedError("a nonce or a proof is not hexadecimal digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """Who speaks. The proof of a follower shows that it knows the shared key."""

    node: str = ""
    nonce: str = ""
    proof: str = ""
    id: str = ""
    """Of the follower's copy: it counts once for a quorum."""

    def check(self) -> None:
        """Nonce, proof and id are hexadecimal digits."""
        _check_digits(self.nonce, self.proof, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof(Message):
    """The leader's proof, and its log."""

    proof: str = ""
    log_id: str = ""
    epoch: int = 0

    def check(self) -> None:
        """The proof is hexadecimal digits, the epoch a number of 64 bits."""
        _check_digits(self.proof)
        if not 0 <= self.epoch < 1 << 64:
            raise MalformedError(f"a frame PROOF claims epoch {self.epoch}")


@dataclass(frozen=True, slots=True, kw_only=True)
class State(Message):
    """What a follower has: which log, the highest epoch it has seen, and how far it is durable."""

    log_id: str = ""
    epoch: int = 0
    mark: str = ""
    """The durable mark as hexadecimal digits; empty without a log."""
    epochs: tuple[tuple[int, int], ...] = ()
    """The first segment of each epoch, and the epoch."""
    tail_bytes: int = 0
    tail_crc: int = 0
    """CRC-32C of so many bytes before the mark, in the segment of the mark."""

    def end(self) -> Mark | None:
        """The durable mark; None without a log. Raises MalformedError."""
        if not self.mark:
            return None
        try:
            mark = marks.decode(bytes.fromhex(self.mark))
        except ValueError as error:
            raise MalformedError("the mark in a frame STATE is invalid") from error
        if mark is None:
            raise MalformedError("the mark in a frame STATE is invalid")
        if not self.epochs:
            raise MalformedError("a frame STATE has a mark and no epochs")
        return mark

    def epoch_of(self, sequence: int) -> int | None:
        """The epoch of a segment of the follower; None if it is older than its log."""
        found = [epoch for first, epoch in self.epochs if first <= sequence]
        return found[-1] if found else None

    def check(self) -> None:
        """Every epoch is two numbers, in the order of the segments."""
        whole = all(
            isinstance(each, tuple) and [type(part) for part in each] == [int, int]
            for each in cast("tuple[object, ...]", self.epochs)
        )
        if not whole or any(a >= b for (a, _), (b, _) in pairwise(self.epochs)):
            raise MalformedError("the epochs in a frame STATE are invalid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(Message):
    """What a follower has to do before the leader sends data."""

    action: str = "continue"
    """`continue` at the place; `cut` the log there and say STATE again; `reset`: remove the log."""
    sequence: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Message):
    """Why a side ends the connection: the code, text and hint of an error."""

    code: str = ""
    message: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundles(Message):
    """The names of the leader's bundles of small state."""

    MAX_BYTES: ClassVar[int] = 1 << 20

    names: tuple[str, ...] = ()

    def check(self) -> None:
        """Every name is a string."""
        if not all(type(each) is str for each in cast("tuple[object, ...]", self.names)):
            raise MalformedError("the names in a frame BUNDLES are invalid")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleHead(Message):
    """A bundle, which follows in frames CONTENT."""

    name: str = ""
    size: int = 0
    crc: int = 0
    """CRC-32C of the content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Message):
    """The follower has a bundle durably."""

    name: str = ""
    crc: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched(Message):
    """The end of a segment that was fetched, or why the leader cannot send it."""

    sequence: int = 0
    size: int = 0
    """Of the segment, without its index."""
    code: str = ""
    """The code of an error; empty: everything was sent."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A follower's request for a sealed segment that it cannot read."""

    sequence: int

    def encode(self) -> bytes:
        """As a payload."""
        return _FETCH.pack(self.sequence)

    @classmethod
    def decode(cls, payload: Buffer) -> Fetch:
        """From a payload. Raises MalformedError."""
        if len(payload) != _FETCH.size:
            raise MalformedError(f"a frame FETCH has {len(payload)} bytes")
        return cls(*_FETCH.unpack(payload))


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a segment or of its index: the next ones of the log, or of what was fetched."""

    sequence: int
    base_lsn: int
    offset: int
    index: bool
    content: Buffer = field(repr=False)

    def parts(self) -> tuple[bytes, Buffer]:
        """The payload of a frame."""
        return _DATA.pack(self.sequence, self.base_lsn, self.offset, self.index), self.content

    @classmethod
    def decode(cls, payload: Buffer) -> Data:
        """From a payload. Raises MalformedError."""
        if len(payload) < _DATA.size:
            raise MalformedError("a frame DATA ends inside its header")
        sequence, base_lsn, offset, file = _DATA.unpack_from(payload)
        if file > 1:
            raise MalformedError(f"a frame DATA is of the unknown file {file}")
        content = memoryview(payload)[_DATA.size :]
        return cls(sequence, base_lsn, offset, bool(file), content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """How far the leader's log goes, and where it begins."""

    oldest: int
    """The sequence number of the leader's oldest segment."""
    mark: Mark
    visible: Mark | None = None
    """How far readers may read, where that is less."""

    def encode(self) -> bytes:
        """As a payload."""
        visible = b"" if self.visible is None else self.visible.encode()
        return _OLDEST.pack(self.oldest) + self.mark.encode() + visible

    @classmethod
    def decode(cls, payload: Buffer) -> Marked:
        """From a payload. Raises MalformedError."""
        data = bytes(payload)
        size = _OLDEST.size + marks.RECORD_BYTES
        if len(data) not in (size, size + marks.RECORD_BYTES):
            raise MalformedError(f"a frame MARK has {len(data)} bytes")
        visible = decode_mark(data[size:]) if len(data) > size else None
        mark = decode_mark(data[_OLDEST.size : size])
        return cls(oldest=_OLDEST.unpack_from(data)[0], mark=mark, visible=visible)


def decode_mark(data: Buffer) -> Mark:
    """A mark in a frame. Raises MalformedError."""
    mark = marks.decode(bytes(data))
    if mark is None:
        raise MalformedError("a frame holds an invalid mark")
    return mark


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life of the leader."""

    epoch: int
    time_ms: int

    def encode(self) -> bytes:
        """As a payload."""
        return _BEAT.pack(self.epoch, self.time_ms)

    @classmethod
    def decode(cls, payload: Buffer) -> Heartbeat:
        """From a payload. Raises MalformedError."""
        if len(payload) != _BEAT.size:
            raise MalformedError(f"a frame HEARTBEAT has {len(payload)} bytes")
        return cls(*_BEAT.unpack(payload))
