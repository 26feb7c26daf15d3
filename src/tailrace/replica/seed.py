"""Version 1 of the protocol as bytes: entries of the log, one frame each.

The frames are those of Chronik's design, so that a follower that knows nothing of Tailrace can take
part. Integers are big-endian; a string is a length of 16 bits and UTF-8.
`docs/formats/replication.md` has the table.

The two handshakes begin every connection, also in version 2. Pure: no I/O and no clock.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from tailrace.errors import MalformedError
from tailrace.position import Lsn

VERSION = 1
SYNC, ASYNC = 1, 0
MAX_FRAME_BYTES = 1 << 31
"""An entry of the log is smaller."""

HANDSHAKE = struct.Struct(">HQB")
ANSWER = struct.Struct(">BQH")
"""Without the text of the message."""
MAGIC = struct.Struct(">H")
HEAD = struct.Struct(">HHI")
BEAT = struct.Struct(">Hq")
BEAT_ANSWER = struct.Struct(">q")
ENTRY_MAGIC, BEAT_MAGIC = 0x5741, 0x4842
_FIXED = struct.Struct(">iqIqI")
_LENGTH = struct.Struct(">H")
_MAX_TOPIC_BYTES = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """What a leader says first."""

    version: int
    node: int
    sync: bool

    def encode(self) -> bytes:
        """As bytes."""
        return HANDSHAKE.pack(self.version, self.node, SYNC if self.sync else ASYNC)

    @classmethod
    def decode(cls, data: bytes) -> Handshake:
        """From HANDSHAKE.size bytes."""
        version, node, mode = HANDSHAKE.unpack(data)
        if mode not in (ASYNC, SYNC):
            raise MalformedError(f"a handshake has the unknown mode {mode}")
        return cls(version=version, node=node, sync=mode == SYNC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a follower answers."""

    accepted: bool
    end_lsn: Lsn
    """The end of what it holds; 0 if it holds nothing."""
    message: str = ""

    def encode(self) -> bytes:
        """As bytes."""
        text = self.message.encode()[:_MAX_TOPIC_BYTES]
        return ANSWER.pack(not self.accepted, self.end_lsn, len(text)) + text

    @classmethod
    def decode(cls, head: bytes, text: bytes) -> Answer:
        """From ANSWER.size bytes and the text that they announce."""
        status, end_lsn, _ = ANSWER.unpack(head)
        return cls(
            accepted=status == 0, end_lsn=Lsn(end_lsn), message=text.decode("utf-8", "replace")
        )


def text_bytes(head: bytes) -> int:
    """How many bytes of text follow the head of an answer."""
    return int(ANSWER.unpack(head)[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFrame:
    """An entry of the log with what the frame says about it."""

    topic: str
    """`database.slot`."""
    first_lsn: Lsn
    changes: int
    time_ms: int
    data: bytes | memoryview
    """Header and body of the entry, as in a segment."""

    def encode(self) -> bytes:
        """The frame without its data, which follows it."""
        topic = self.topic.encode()
        data = memoryview(self.data)
        length = _LENGTH.size + len(topic) + _FIXED.size + len(data)
        return b"".join(
            (
                HEAD.pack(ENTRY_MAGIC, VERSION, length),
                _LENGTH.pack(len(topic)),
                topic,
                _FIXED.pack(0, self.first_lsn, self.changes, self.time_ms, zlib.crc32(data)),
            )
        )

    @classmethod
    def decode(cls, content: bytes) -> EntryFrame:
        """From what follows HEAD. Raises MalformedError."""
        if len(content) < _LENGTH.size:
            raise MalformedError("a frame ends inside its topic")
        (topic_bytes,) = _LENGTH.unpack_from(content)
        start = _LENGTH.size + topic_bytes
        if len(content) < start + _FIXED.size:
            raise MalformedError("a frame ends inside its metadata")
        partition, first, changes, time_ms, crc = _FIXED.unpack_from(content, start)
        data = memoryview(content)[start + _FIXED.size :]
        if partition != 0 or first < 0:
            raise MalformedError(f"a frame has partition {partition} and offset {first}")
        if zlib.crc32(data) != crc:
            raise MalformedError("the checksum of a frame does not match")
        try:
            topic = content[_LENGTH.size : start].decode()
        except UnicodeDecodeError as error:
            raise MalformedError("the topic of a frame is not UTF-8") from error
        return cls(topic=topic, first_lsn=Lsn(first), changes=changes, time_ms=time_ms, data=data)


def content_bytes(head: bytes) -> int:
    """How many bytes follow the head of an entry's frame. Raises MalformedError."""
    magic, version, length = HEAD.unpack(head)
    if (magic, version) != (ENTRY_MAGIC, VERSION):
        raise MalformedError(f"a frame has magic {magic:#x} and version {version}")
    if length > MAX_FRAME_BYTES:
        raise MalformedError(f"a frame claims {length} bytes")
    return int(length)


def heartbeat(time_ms: int) -> bytes:
    """A heartbeat of the leader."""
    return BEAT.pack(BEAT_MAGIC, time_ms)


def heartbeat_answer(time_ms: int) -> bytes:
    """The follower's answer."""
    return BEAT_ANSWER.pack(time_ms)
