"""A session that looks at the source from outside: for the watchdog.

It gives up a server that does not answer, so whatever has happened to it, the caller learns that
within a known time. It reads catalogs and emits a message; it never waits for a lock.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from tailrace.errors import TailraceError
from tailrace.position import Lsn
from tailrace.postgres.connection import translate
from tailrace.postgres.limited import connect_limited
from tailrace.postgres.publication import read_publication
from tailrace.postgres.slot import read_slot
from tailrace.postgres.slot_terms import read_terms
from tailrace.tables import WATCHDOG

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from tailrace.postgres.limited import LimitedConnection
    from tailrace.postgres.publication import PublicationState
    from tailrace.postgres.slot import SlotState

    T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The source at one moment."""

    standby: bool
    wal_end: Lsn
    slot: SlotState | None
    terms: dict[int, SlotState]
    """The slots of all terms of the log."""
    publication: PublicationState | None
    database: str


class Probe:
    """A session that is opened at its first use, and again after a failure."""

    def __init__(self, dsn: str, *, timeout_s: float) -> None:
        self._dsn = dsn
        self._timeout_s = timeout_s
        self._connection: LimitedConnection | None = None

    def observe(self, *, base: str, slot: str, publication: str) -> Observation:
        """Look at the server's WAL, a slot and a publication."""

        def read(connection: LimitedConnection) -> Observation:
            row = connection.execute(_WAL).fetchone()
            assert row is not None
            return Observation(
                standby=row[0],
                wal_end=Lsn.parse(row[1]),
                database=row[2],
                slot=read_slot(connection, slot),
                terms=read_terms(connection, base),
                publication=read_publication(connection, publication),
            )

        return self._use(read)

    def beat(self) -> Lsn:
        """Commit a transactional logical message; its end, where its commit record may begin."""

        def emit(connection: LimitedConnection) -> Lsn:
            row = connection.execute(
                "SELECT pg_logical_emit_message(true, %s, now()::text)::text", (WATCHDOG,)
            ).fetchone()
            assert row is not None
            return Lsn.parse(row[0])

        return self._use(emit)

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _use(self, work: Callable[[LimitedConnection], T]) -> T:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connected()
            return work(self._connection)
        except psycopg.Error as error:
            self.close()
            raise translate(error, dsn=self._dsn) from error
        except TailraceError:
            self.close()
            raise

    def _connected(self) -> LimitedConnection:
        made = connect_limited(
            self._dsn, application_name="tailrace watch", timeout_s=self._timeout_s
        )
        # A heartbeat waits for no disk and no standby: whether it arrives is what it measures.
        made.execute(b"SET synchronous_commit TO off")
        return made


_WAL = """
SELECT pg_is_in_recovery(),
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
             ELSE pg_current_wal_insert_lsn() END)::text,
       current_database()
"""
