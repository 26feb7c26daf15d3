"""Receives COPY without libpq: whole buffers from the socket, no call and no malloc per row.

`PQgetCopyData` returns one row at a time, in its own memory. From Python that takes 0.5 µs per row
of 120 bytes, as much as everything done with the row later. Reading megabytes from the socket and
finding the rows with numpy takes 0.15 µs. So this module sends the statement and reads its whole
answer. libpq's buffers are empty before and after, and libpq does not notice.

It needs a session on a plain socket with no statement in progress (`possible`); other sessions use
libpq. The session must not LISTEN: notifications arrive at any time, and libpq may hold half of
one. Notices and parameter changes between rows are dropped.

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
from tailrace.snapshot.lines import HEADER_BYTES, ROW, Lines, lengths, message_edges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from psycopg import pq

    from tailrace.errors import TailraceError

# Smaller buffers stay in the CPU cache, but cost the JVM more: it takes one batch per buffer.
_BUFFER_BYTES = 1 << 22
_MIN_SPACE_BYTES = 1 << 16
"""A buffer with less free space than this counts as full."""
# PostgreSQL sends 8 kB at a time. Waking up for each costs both sides; a short sleep lets more
# arrive, though less than the socket's buffer holds.
_SLEEP_BELOW_BYTES = 1 << 16
_SLEEP_S = 0.0002
_POLL_MS = 1000

_HEADER = Struct("!BI")
_QUERY, _ERROR, _READY = ord("Q"), ord("E"), ord("Z")
_KNOWN = frozenset(b"HdcCZENSA")
"""CopyOutResponse, rows, CopyDone, CommandComplete, ReadyForQuery, errors; notices, settings,
notifications."""
_LOOKS_READY = b"Z\0\0\0\5"
_MAX_MESSAGE_BYTES = 1 << 30
"""PostgreSQL's own limit for a message."""


def possible(session: pq.abc.PGconn) -> bool:
    """Whether the session's socket carries plain protocol messages and no statement runs."""
    try:
        plain = not session.ssl_in_use and not session.used_gssapi
    except psycopg.NotSupportedError:
        # libpq before version 16 cannot say whether GSSAPI encrypts.
        return False
    idle = session.transaction_status in {TransactionStatus.IDLE, TransactionStatus.INTRANS}
    return plain and idle and session.pipeline_status == PipelineStatus.OFF


def receive(session: pq.abc.PGconn, statement: str) -> Iterator[Lines]:
    """The rows of COPY … TO STDOUT, some megabytes at a time, each valid until the next.

    The session can be used again after the last row, and after an error of the statement. It is
    closed if the iterator is closed before that, or the connection breaks.
    """
    inbox = Inbox()
    line = socket.socket(fileno=session.socket)
    try:
        line.setblocking(False)
        _send(line, statement)
        while not inbox.complete:
            more = _fill(line, inbox)
            lines = inbox.lines()
            if not more and not inbox.complete:
                raise inbox.error or PostgresUnreachableError(
                    "server closed the connection unexpectedly"
                )
            if len(lines) and inbox.error is None:
                yield lines
            inbox.clear()
    finally:
        line.detach()
        if not inbox.complete:
            session.finish()
    if inbox.error is not None:
        # An empty statement: its answer tells libpq that the transaction has failed.
        session.exec_(b"")
        raise inbox.error


def _send(line: socket.socket, statement: str) -> None:
    text = statement.encode() + b"\0"
    left = memoryview(_HEADER.pack(_QUERY, len(text) + 4) + text)
    poll = select.poll()
    poll.register(line, select.POLLOUT)
    # A server that closes the connection may have sent the reason before: it is read later.
    with contextlib.suppress(ConnectionError):
        while left:
            poll.poll()
            left = left[line.send(left) :]


def _fill(line: socket.socket, inbox: Inbox) -> bool:
    """Receive until the inbox is worth parsing; False at the end of the connection."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while True:
        try:
            count = line.recv_into(inbox.space)
        except BlockingIOError:
            if poll.poll(_POLL_MS):
                continue
            return True
        except OSError as error:
            raise classify(None, f"could not receive data from server: {error}") from error
        if not count:
            return False
        inbox.received(count)
        if inbox.worth_parsing:
            return True
        if count < _SLEEP_BELOW_BYTES:
            time.sleep(_SLEEP_S)


class Inbox:
    """The server's answer to a COPY: received at the end of a buffer, parsed from its beginning.

    `error` is the server's error, if it sent one.
    """

    def __init__(self, size: int = _BUFFER_BYTES) -> None:
        self._size = size
        self._min_space = min(_MIN_SPACE_BYTES, size // 2)
        self._buffer: NDArray[np.uint8] = np.empty(size, np.uint8)
        self._begin = self._end = 0
        self._ready = False
        self.error: TailraceError | None = None

    @property
    def complete(self) -> bool:
        """Whether the server is ready for another statement, and everything has been parsed."""
        return self._ready and self._begin == self._end

    @property
    def worth_parsing(self) -> bool:
        """Whether the buffer is nearly full, or seems to end with ReadyForQuery."""
        if len(self._buffer) - self._end < self._min_space:
            return True
        return self._buffer[: self._end][-6:-1].tobytes() == _LOOKS_READY

    @property
    def space(self) -> memoryview:
        """The free part of the buffer."""
        return self._buffer[self._end :].data

    def received(self, count: int) -> None:
        """Note that `count` bytes were received."""
        self._end += count

    def lines(self) -> Lines:
        """Parse all complete messages; the rows among them, valid until `clear`."""
        self._parse(rows=False)
        unparsed = self._buffer[self._begin : self._end]
        edges = message_edges(unparsed)
        # Zeroed, because a byte of a length may look like a tab or a newline.
        lengths(unparsed)[edges[:-1] + 1] = 0
        edges += self._begin
        self._begin = int(edges[-1])
        # The messages at the end; or, after a notice between rows, all the rest, one by one.
        others = np.array(self._parse(rows=True), np.int64).reshape(-1, 2)
        begins = np.concatenate([edges[:-1] + HEADER_BYTES, others[:, 0]])
        return Lines(self._buffer, begins, np.concatenate([edges[1:], others[:, 1]]))

    def clear(self) -> None:
        """Drop what was parsed, and make space for the rest of an incomplete message."""
        left = self._buffer[self._begin : self._end]
        size = len(left)
        if size >= HEADER_BYTES:
            size = self._message()[1] - self._begin
        size = max(size + self._min_space, self._size)
        if size != len(self._buffer):
            self._buffer = np.empty(size, np.uint8)
        self._buffer[: len(left)] = left
        self._begin, self._end = 0, len(left)

    def _message(self) -> tuple[int, int]:
        """The type of the next message, and its end."""
        kind, length = _HEADER.unpack_from(self._buffer.data, self._begin)
        if kind not in _KNOWN or not 4 <= length <= _MAX_MESSAGE_BYTES:
            raise PostgresUnreachableError(
                f"lost synchronization with server: message type 0x{kind:02x}"
            )
        return kind, self._begin + 1 + length

    def _parse(self, *, rows: bool) -> list[tuple[int, int]]:
        """Parse complete messages one by one, all or those before the first row; the rows' ranges.

        Parsed bytes are zeroed: `cells` searches the whole buffer for tabs and newlines.
        """
        ranges = []
        while self._end - self._begin >= HEADER_BYTES:
            kind, end = self._message()
            if end > self._end or (kind == ROW and not rows):
                break
            message = self._buffer[self._begin : end]
            if kind == ROW:
                ranges.append((self._begin + HEADER_BYTES, end))
                message = message[:HEADER_BYTES]
            elif kind == _ERROR:
                self.error = self.error or _error(message[HEADER_BYTES:].tobytes())
            self._ready |= kind == _READY
            message[:] = 0
            self._begin = end
        return ranges


def _error(body: bytes) -> TailraceError:
    fields = {each[:1]: each[1:].decode(errors="replace") for each in body.split(b"\0")}
    message = fields.get(b"M", "")
    if detail := fields.get(b"D"):
        message = f"{message}: {detail}"
    return classify(fields.get(b"C"), message)
