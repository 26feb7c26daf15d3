"""The frames of streaming replication, one per CopyData message: `parse` and `write`.

The server sends XLogData and keepalives, the client sends status updates. XLogData carries one
pgoutput message, which is not parsed here.

Layouts: https://www.postgresql.org/docs/18/protocol-replication.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, assert_never

from tailrace.errors import MalformedError
from tailrace.position import Lsn
from tailrace.wire.cursor import Cursor
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Frame", "Keepalive", "PgTime", "StatusUpdate", "XLogData", "parse", "write"]

_XLOG_DATA = Struct("!QQq")
_KEEPALIVE = Struct("!Qq")
_STATUS_UPDATE = Struct("!QQQq")
_FALSE, _TRUE = b"\0", b"\1"


@dataclass(frozen=True, slots=True, kw_only=True)
class XLogData:
    """A part of the stream that starts at `start_lsn`; the server's WAL ends at `end_lsn`.

    In a logical stream `start_lsn` is 0 if another message of the same WAL record follows.
    """

    start_lsn: Lsn
    end_lsn: Lsn
    sent_at: PgTime
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """A sign of life of the server; with `reply_requested` the client must reply at once."""

    end_lsn: Lsn
    sent_at: PgTime
    reply_requested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusUpdate:
    """The positions of the client. The slot releases the WAL before `flushed`."""

    written: Lsn
    flushed: Lsn
    applied: Lsn
    sent_at: PgTime
    reply_requested: bool = False


Frame = XLogData | Keepalive | StatusUpdate


def parse(data: bytes | memoryview) -> Frame:
    """The frame in `data`. Raises `MalformedError` and nothing else."""
    data = bytes(data)
    reader = _READERS.get(data[:1])
    if reader is None:
        letters = b"".join(_READERS)
        raise Cursor(data, "replication frame").malformed(f"a type out of {letters!r}", 0)
    subject, read = reader
    cursor = Cursor(data, subject, 1)
    frame = read(cursor)
    cursor.finish()
    return frame


def write(frame: Frame) -> bytes:
    """The bytes of a frame. Raises `MalformedError` for a value without a wire form."""
    try:
        return _write(frame)
    except struct.error as error:
        kind = type(frame).__name__
        raise MalformedError(f"{kind}: a value does not fit its field: {error}") from error


def _read_xlog_data(cursor: Cursor) -> XLogData:
    start, end, sent = cursor.take(_XLOG_DATA, "start LSN, end LSN and send time")
    return XLogData(
        start_lsn=Lsn(start), end_lsn=Lsn(end), sent_at=PgTime(sent), data=cursor.rest()
    )


def _read_keepalive(cursor: Cursor) -> Keepalive:
    end, sent = cursor.take(_KEEPALIVE, "end LSN and send time")
    return Keepalive(
        end_lsn=Lsn(end), sent_at=PgTime(sent), reply_requested=_read_reply_requested(cursor)
    )


def _read_status_update(cursor: Cursor) -> StatusUpdate:
    written, flushed, applied, sent = cursor.take(_STATUS_UPDATE, "three LSNs and send time")
    return StatusUpdate(
        written=Lsn(written),
        flushed=Lsn(flushed),
        applied=Lsn(applied),
        sent_at=PgTime(sent),
        reply_requested=_read_reply_requested(cursor),
    )


def _read_reply_requested(cursor: Cursor) -> bool:
    return cursor.letter(_FALSE + _TRUE, "whether a reply is requested") == _TRUE


_READERS: dict[bytes, tuple[str, Callable[[Cursor], Frame]]] = {
    b"w": ("XLogData", _read_xlog_data),
    b"k": ("Keepalive", _read_keepalive),
    b"r": ("StatusUpdate", _read_status_update),
}


def _write(frame: Frame) -> bytes:
    match frame:
        case XLogData():
            head = _XLOG_DATA.pack(frame.start_lsn, frame.end_lsn, frame.sent_at)
            return b"w" + head + frame.data
        case Keepalive():
            return b"k" + _KEEPALIVE.pack(frame.end_lsn, frame.sent_at) + _reply(frame)
        case StatusUpdate():
            lsns = frame.written, frame.flushed, frame.applied
            return b"r" + _STATUS_UPDATE.pack(*lsns, frame.sent_at) + _reply(frame)
        case _:
            assert_never(frame)


def _reply(frame: Keepalive | StatusUpdate) -> bytes:
    return _TRUE if frame.reply_requested else _FALSE
