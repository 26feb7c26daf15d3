"""The replication connection: libpq through psycopg's wrapper, without blocking calls.

One thread owns it. It never acknowledges by itself: it sends a status update when `send_status` is
called, with the given positions. Every wait ends after a timeout or when `stopping` is true, so
that a dead server cannot delay a shutdown.
"""

from __future__ import annotations

import contextlib
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import psycopg
from psycopg import pq

from tailrace.errors import PostgresRefusedError, PostgresUnreachableError
from tailrace.position import Lsn
from tailrace.postgres.connection import VALUES_SQL, classify, conninfo, translate
from tailrace.postgres.names import quote_ident, quote_literal
from tailrace.wire.pgtime import PgTime
from tailrace.wire.replication import StatusUpdate, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg.pq.abc import PGconn, PGresult

_PG_EPOCH_S = 946_684_800
_READY = {
    pq.PollingStatus.READING: select.POLLIN,
    pq.PollingStatus.WRITING: select.POLLOUT,
}

# `_notice` needs warnings, and a role may have a higher client_min_messages.
_SESSION_SQL = f"{VALUES_SQL}; SET client_min_messages TO warning"
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp() - '2000-01-01Z') * 1000000)::bigint"
_MISSING_PUBLICATION_HINT = (
    "Changes committed without the publication cannot be read with this slot. Move the log folder "
    "away, drop the slot, run `tailrace init`, and take a new snapshot."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The result of IDENTIFY_SYSTEM, and the server's time."""

    identifier: str
    timeline: int
    flushed: Lsn
    database: str
    now: PgTime
    """The server's clock."""


class Replication:
    """A logical replication connection to one database."""

    def __init__(self, pgconn: PGconn, dsn: str, stopping: Callable[[], bool]) -> None:
        self._conn = pgconn
        self._dsn = dsn
        self._stopping = stopping
        self._publication = ""
        self.get_copy_data = pgconn.get_copy_data
        self.refusal: PostgresRefusedError | None = None
        """Set when the messages that follow must not be captured, with the reason."""
        self.on_refusal: Callable[[], None] = lambda: None
        """Called inside `get_copy_data`, before it returns the next message."""

    @classmethod
    def connect(cls, dsn: str, *, timeout_s: int, stopping: Callable[[], bool]) -> Self:
        """Open the connection and pin the session's text settings."""
        text = conninfo(dsn, replication=True, connect_timeout_s=timeout_s)
        pgconn = pq.PGconn.connect_start(text.encode())
        self = cls(pgconn, dsn, stopping)
        try:
            self._finish_connecting(time.monotonic() + timeout_s)
            pgconn.nonblocking = 1
            self.query(_SESSION_SQL)
            pgconn.notice_handler = self._notice
        except BaseException:
            pgconn.finish()
            raise
        return self

    def _finish_connecting(self, deadline: float) -> None:
        status = pq.PollingStatus.WRITING
        while status != pq.PollingStatus.OK:
            if self._conn.status == pq.ConnStatus.BAD or status == pq.PollingStatus.FAILED:
                raise self._failed()
            self._wait(_READY[status], deadline, "PostgreSQL did not accept the connection in time")
            status = pq.PollingStatus(self._conn.connect_poll())

    def _failed(self) -> Exception:
        message = self._conn.get_error_message() or "the connection was lost"
        return classify(None, message, dsn=self._dsn)

    def _wait(self, events: int, deadline: float, failure: str) -> None:
        poll = select.poll()
        poll.register(self._conn.socket, events)
        while not poll.poll(100):
            if time.monotonic() > deadline or self._stopping():
                raise PostgresUnreachableError(failure)

    def query(self, command: str, *, timeout_s: float = 30) -> list[tuple[str | None, ...]]:
        """Run one command and return its rows as text."""
        rows: list[tuple[str | None, ...]] = []
        for result in self._results(command, time.monotonic() + timeout_s):
            for row in range(result.ntuples):
                cells = (result.get_value(row, column) for column in range(result.nfields))
                rows.append(tuple(None if cell is None else cell.decode() for cell in cells))
        return rows

    def _results(self, command: str, deadline: float) -> list[PGresult]:
        try:
            self._conn.send_query(command.encode())
            while self._conn.flush():
                self._wait(
                    select.POLLOUT | select.POLLIN,
                    deadline,
                    "PostgreSQL did not accept a command in time",
                )
            results = []
            while (result := self._next_result(deadline)) is not None:
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    raise self._refusal(result)
                results.append(result)
                if result.status == pq.ExecStatus.COPY_BOTH:
                    break
        except psycopg.Error as error:
            raise translate(error, dsn=self._dsn) from error
        return results

    def _next_result(self, deadline: float) -> PGresult | None:
        while self._conn.is_busy():
            self._wait(select.POLLIN, deadline, "PostgreSQL did not answer a command in time")
            self._conn.consume_input()
        return self._conn.get_result()

    def _refusal(self, result: PGresult) -> Exception:
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"unknown error"
        detail = result.error_field(pq.DiagnosticField.MESSAGE_DETAIL)
        text = message.decode(errors="replace")
        if detail:
            text = f"{text}: {detail.decode(errors='replace')}"
        return classify(state.decode() if state else None, text, dsn=self._dsn)

    def _notice(self, result: PGresult) -> None:
        """Notice a missing publication: from 18 on PostgreSQL warns and skips the changes."""
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        if state == b"55000" and self._publication and self._publication.encode() in message:
            self.refusal = PostgresRefusedError(
                f"publication {self._publication} did not exist when the next change was committed",
                hint=_MISSING_PUBLICATION_HINT,
            )
            self.on_refusal()

    def identify(self) -> System:
        """Which server this is, and where its WAL ends."""
        identifier, timeline, flushed, database = self.query("IDENTIFY_SYSTEM")[0]
        if database is None or identifier is None or timeline is None or flushed is None:
            raise PostgresRefusedError(
                "the connection has no database", hint="Add dbname to source.dsn."
            )
        return System(
            identifier=identifier,
            timeline=int(timeline),
            flushed=Lsn.parse(flushed),
            database=database,
            now=PgTime(int(self.query(_CLOCK)[0][0] or 0)),
        )

    def timeline_history(self, timeline: int) -> str:
        """The history file of a timeline: where each earlier timeline ended."""
        content = self.query(f"TIMELINE_HISTORY {timeline}")[0][1] or ""
        # The walsender sends a bytea column, whose text form is hexadecimal.
        return bytes.fromhex(content[2:]).decode() if content.startswith("\\x") else content

    def sender_timeout_s(self) -> float:
        """The `wal_sender_timeout` of this session; 0 is off."""
        rows = self.query("SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'")
        return int(rows[0][0] or 0) / 1000

    def start(self, slot: str, publication: str, start: Lsn, *, messages: bool) -> None:
        """Start streaming at `start`, the end of the log."""
        self._publication = publication
        names = quote_literal(quote_ident(publication))
        options = f"proto_version '1', publication_names {names}"
        if messages:
            options += ", messages 'true'"
        command = f"START_REPLICATION SLOT {quote_ident(slot)} LOGICAL {start} ({options})"
        results = self._results(command, time.monotonic() + 30)
        if not results or results[-1].status != pq.ExecStatus.COPY_BOTH:
            raise PostgresRefusedError("PostgreSQL did not start the replication stream")

    @property
    def socket(self) -> int:
        """The file descriptor to poll."""
        return self._conn.socket

    def consume_input(self) -> None:
        """Read what the socket has, without waiting."""
        try:
            self._conn.consume_input()
        except psycopg.Error as error:
            raise self.broken(error) from error

    def broken(self, error: psycopg.Error) -> PostgresUnreachableError:
        """The error for a connection that failed during the stream: always transient."""
        return PostgresUnreachableError(str(translate(error, dsn=self._dsn)))

    def stream_ended(self) -> Exception:
        """The reason why `get_copy_data` reported the end of the stream."""
        try:
            result = self._conn.get_result()
            while result is not None:
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    return self._refusal(result)
                result = self._conn.get_result()
        except psycopg.Error as error:
            return translate(error, dsn=self._dsn)
        return PostgresUnreachableError("PostgreSQL ended the replication stream")

    def send_status(self, *, written: Lsn, flushed: Lsn, reply_requested: bool = False) -> None:
        """Send a status update. PostgreSQL may remove the WAL before `flushed`."""
        micros = (time.time_ns() // 1000) - _PG_EPOCH_S * 1_000_000
        update = StatusUpdate(
            written=max(written, flushed),
            flushed=flushed,
            applied=flushed,
            sent_at=PgTime(micros),
            reply_requested=reply_requested,
        )
        try:
            self._conn.put_copy_data(write(update))
            self._conn.flush()
        except psycopg.Error as error:
            raise self.broken(error) from error

    def finish(self, *, timeout_s: float = 3.0) -> None:
        """End the stream so that the server reads the last status update, and disconnect.

        Closing a TCP socket with unread input resets the connection, which can discard what was
        sent last. So the input is read until the server ends the stream too, and then the command:
        it releases the slot in between.
        """
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(psycopg.Error, OSError):  # the connection may be lost already
            self._conn.put_copy_end()
            while self._waits(deadline):
                self._conn.flush()
                size, _ = self._conn.get_copy_data(1)
                if size < 0:
                    break
                if size == 0:
                    self._receive()
            while self._waits(deadline):
                if self._conn.is_busy():
                    self._receive()
                elif self._conn.get_result() is None:
                    break
        self.close()

    def _waits(self, deadline: float) -> bool:
        return time.monotonic() < deadline and self._conn.status == pq.ConnStatus.OK

    def _receive(self) -> None:
        poll = select.poll()
        poll.register(self._conn.socket, select.POLLIN)
        poll.poll(50)
        self._conn.consume_input()

    def close(self) -> None:
        """Disconnect at once."""
        self._conn.finish()
