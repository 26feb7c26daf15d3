"""COPY received past libpq: whole buffers from the socket, without a call and a malloc a row.

`PQgetCopyData` gives one row at a time, in memory of its own. From Python that takes 0.5 µs a row
of 120 bytes, as much as all that is done with the row later; read from the socket by megabytes,
with numpy to find the rows in them, it is 0.15. So the statement is sent and all of its answer is
read here. libpq has empty buffers before and after, and knows nothing of it.

That takes a session over a plain socket, with nothing under way (`possible`); others go on with
libpq. It must not LISTEN: then messages come at any time, and libpq may hold half of one. What else
comes beside rows, notices and settings that changed, is dropped.

Messages: https://www.postgresql.org/docs/18/protocol-message-formats.html
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from tailrace.errors import PostgresUnreachableError
from tailrace.postgres.connection import classify
from tailrace.snapshot.lines import HEADER_BYTES, ROW, Lines, framed, lengths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from psycopg import pq

    from tailrace.errors import TailraceError

# Smaller ones stay in cache and cost the JVM more, which takes a batch for each.
_BUFFER_BYTES = 1 << 22
_ROOM_BYTES = 1 << 16
"""With less room than this a buffer is as good as full."""
# PostgreSQL sends eight kilobytes at a time. Waking up for each costs both sides; a nap lets more
# of them gather, though fewer than the socket holds.
_NAP_BELOW_BYTES = 1 << 16
_NAP_S = 0.0002
_PATIENCE_MS = 1000

_HEADER = Struct("!BI")
_QUERY, _ERROR, _READY = ord("Q"), ord("E"), ord("Z")
_KNOWN = frozenset(b"HdcCZENSA")
"""CopyOutResponse, rows, CopyDone, CommandComplete, ReadyForQuery, errors; notices, settings,
notifications."""
_LOOKS_READY = b"Z\0\0\0\5"
_LONGEST = 1 << 30
"""PostgreSQL has no room for more, either."""


def possible(session: pq.abc.PGconn) -> bool:
    """Whether what the server sends is on the socket as it is, and nothing is on its way."""
    try:
        plain = not session.ssl_in_use and not session.used_gssapi
    except psycopg.NotSupportedError:
        # libpq before version 16 does not say.
        return False
    at_rest = session.transaction_status in {TransactionStatus.IDLE, TransactionStatus.INTRANS}
    return plain and at_rest and session.pipeline_status == PipelineStatus.OFF


def receive(session: pq.abc.PGconn, statement: str) -> Iterator[Lines]:
    """The rows of COPY … TO STDOUT, some megabytes at a time, each time good until the next.

    The session can be used again after the last, and after an error of the statement. Left in the
    middle, or with its line cut, it is closed.
    """
    inbox = Inbox()
    line = socket.socket(fileno=session.socket)
    try:
        line.setblocking(False)
        _send(line, statement)
        while not inbox.over:
            more = _fill(line, inbox)
            lines = inbox.lines()
            if not more and not inbox.over:
                raise inbox.error or PostgresUnreachableError(
                    "server closed the connection unexpectedly"
                )
            if len(lines) and inbox.error is None:
                yield lines
            inbox.clear()
    finally:
        line.detach()
        if not inbox.over:
            session.finish()
    if inbox.error is not None:
        # An empty statement: libpq hears that the transaction has failed.
        session.exec_(b"")
        raise inbox.error


def _send(line: socket.socket, statement: str) -> None:
    text = statement.encode() + b"\0"
    left = memoryview(_HEADER.pack(_QUERY, len(text) + 4) + text)
    poll = select.poll()
    poll.register(line, select.POLLOUT)
    # If the server has gone, it may have said why.
    with contextlib.suppress(ConnectionError):
        while left:
            poll.poll()
            left = left[line.send(left) :]


def _fill(line: socket.socket, inbox: Inbox) -> bool:
    """Receive until the inbox is worth reading; whether more may come."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while True:
        try:
            count = line.recv_into(inbox.room)
        except BlockingIOError:
            if poll.poll(_PATIENCE_MS):
                continue
            return True
        except OSError as error:
            raise classify(None, f"could not receive data from server: {error}") from error
        if not count:
            return False
        inbox.received(count)
        if inbox.ripe:
            return True
        if count < _NAP_BELOW_BYTES:
            time.sleep(_NAP_S)


class Inbox:
    """What the server answers to a COPY: received at the end of a buffer, read at its beginning.

    `error` is the one that the server said, if any.
    """

    def __init__(self, size: int = _BUFFER_BYTES) -> None:
        self._size = size
        self._least = min(_ROOM_BYTES, size // 2)
        self._buffer: NDArray[np.uint8] = np.empty(size, np.uint8)
        self._begin = self._end = 0
        self._ready = False
        self.error: TailraceError | None = None

    @property
    def over(self) -> bool:
        """Whether the server is ready for another statement, and all it sent has been read."""
        return self._ready and self._begin == self._end

    @property
    def ripe(self) -> bool:
        """Whether it is worth reading: nearly full, or with what looks like the end."""
        if len(self._buffer) - self._end < self._least:
            return True
        return self._buffer[: self._end][-6:-1].tobytes() == _LOOKS_READY

    @property
    def room(self) -> memoryview:
        """Where to receive."""
        return self._buffer[self._end :].data

    def received(self, count: int) -> None:
        """So many bytes have come."""
        self._end += count

    def lines(self) -> Lines:
        """Read all messages that are whole; the rows among them, good until `clear`."""
        self._read(rows=False)
        found = self._buffer[self._begin : self._end]
        edges = framed(found)
        # A byte of a length may look like a tab or a newline.
        lengths(found)[edges[:-1] + 1] = 0
        edges += self._begin
        self._begin = int(edges[-1])
        # The end; or, behind a message that came between rows, all the rest, one by one.
        others = np.array(self._read(rows=True), np.int64).reshape(-1, 2)
        begins = np.concatenate([edges[:-1] + HEADER_BYTES, others[:, 0]])
        return Lines(self._buffer, begins, np.concatenate([edges[1:], others[:, 1]]))

    def clear(self) -> None:
        """Let go of what has been read, and have room for the rest of what is not whole."""
        left = self._buffer[self._begin : self._end]
        wanted = len(left)
        if wanted >= HEADER_BYTES:
            wanted = self._message()[1] - self._begin
        wanted = max(wanted + self._least, self._size)
        if wanted != len(self._buffer):
            self._buffer = np.empty(wanted, np.uint8)
        self._buffer[: len(left)] = left
        self._begin, self._end = 0, len(left)

    def _message(self) -> tuple[int, int]:
        """The kind of the next message, and where it ends."""
        kind, length = _HEADER.unpack_from(self._buffer.data, self._begin)
        if kind not in _KNOWN or not 4 <= length <= _LONGEST:
            raise PostgresUnreachableError(
                f"lost synchronization with server: message type 0x{kind:02x}"
            )
        return kind, self._begin + 1 + length

    def _read(self, *, rows: bool) -> list[tuple[int, int]]:
        """Read messages one by one: all that are whole, or those up to a row. Where rows lie."""
        found = []
        while self._end - self._begin >= HEADER_BYTES:
            kind, end = self._message()
            if end > self._end or (kind == ROW and not rows):
                break
            message = self._buffer[self._begin : end]
            if kind == ROW:
                found.append((self._begin + HEADER_BYTES, end))
                message = message[:HEADER_BYTES]
            elif kind == _ERROR:
                self.error = self.error or _error(message[HEADER_BYTES:].tobytes())
            self._ready |= kind == _READY
            message[:] = 0
            self._begin = end
        return found


def _error(body: bytes) -> TailraceError:
    fields = {each[:1]: each[1:].decode(errors="replace") for each in body.split(b"\0")}
    message = fields.get(b"M", "")
    if detail := fields.get(b"D"):
        message = f"{message}: {detail}"
    return classify(fields.get(b"C"), message)
