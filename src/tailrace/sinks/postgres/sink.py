"""`Postgres`: the sink. Exactly once: the lane's position is in the transaction of its messages.

`write` stores messages in an open transaction, `flush` adds the position and commits. After a crash
the position is read back, and messages up to there are skipped (`tailrace.sinks.ledger`). Opening a
sink fences every earlier one of the lane (`positions`). Spark may run a lane in any worker, so a
sink that stays open checks at the start of each batch whether it still owns the lane.

Messages that PostgreSQL refuses are found by storing parts of a batch (`sifting`). If there are
any, `flush` rolls the transaction back and commits **nothing**, because the position must not pass
a refused message before the caller has stored it durably. The receipt counts no messages; its
failures are the refused messages and those that wait for them. The caller parks these, writes the
other messages again, and flushes. A receipt has about 100 refused messages at most; further ones
are found by the next flush.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import structlog

from tailrace.errors import SinkUnreachableError, TailraceError
from tailrace.sinks.contract import Receipt
from tailrace.sinks.ledger import LaneId, Ledger
from tailrace.sinks.postgres import positions
from tailrace.sinks.postgres.events import Events
from tailrace.sinks.postgres.failures import refused
from tailrace.sinks.postgres.positions import Positions
from tailrace.sinks.postgres.session import Session
from tailrace.sinks.postgres.sifting import sift
from tailrace.sinks.postgres.tables import Tables
from tailrace.sinks.unaccepted import Unaccepted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane
    from tailrace.sinks.ledger import LanePosition
    from tailrace.sinks.outcome import Outcome
    from tailrace.sinks.postgres.settings import PostgresSink
    from tailrace.sinks.postgres.sifting import Store


@dataclass(frozen=True, slots=True)
class _Opened:
    """What an open sink has."""

    session: Session
    positions: Positions
    ledger: Ledger


class Postgres:
    """Stores the messages of a lane in another database."""

    def __init__(self, settings: PostgresSink, lane: Lane) -> None:
        self._settings = settings
        self._name = lane.pipeline
        self._owner = lane.owner
        self._lane = LaneId(
            number=lane.number, lanes=lane.lanes, source=lane.history, reset=lane.reset
        )
        connect = partial(Session, settings, name=lane.pipeline)
        self._connect_session = connect
        self._store: Store = (
            Tables()
            if settings.mode == "tables"
            else Events(settings, pipeline=lane.owner, maintains=lane.number == 0, connect=connect)
        )
        self._opened: _Opened | None = None
        self._forget()

    def open(self, after: Position) -> None:
        """Connect, and read the lane's position back."""
        try:
            if self._opened is None or self._rows or self._skipped or not self._still_owns_lane():
                self._connect()
            opened = self._require_open()
            opened.ledger.open(after)
            self._store.opened()
            self._log_resumed(opened.ledger, after)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self.close()
        session = self._connect_session()
        try:
            own = Positions(self._settings.positions, pipeline=self._owner, lane=self._lane.number)
            positions.create(session, own.table)
            # A pipeline of another history is refused before it fences the one that is right.
            self._ledger_of(own.read(session))
            own.claim(session)
            ledger = self._ledger_of(own.read(session))
            self._store.connected(session)
        except BaseException:
            session.close()
            raise
        self._opened = _Opened(session, own, ledger)

    def _ledger_of(self, stored: Mapping[int, LanePosition]) -> Ledger:
        return Ledger(
            self._lane, stored, system="the target database", guide="docs/guides/postgres.md"
        )

    def _still_owns_lane(self) -> bool:
        opened = self._require_open()
        try:
            return not opened.session.in_transaction and opened.positions.owned(opened.session)
        except TailraceError:
            return False

    def _log_resumed(self, ledger: Ledger, after: Position) -> None:
        if ledger.ahead and ledger.stored is not None:
            structlog.get_logger().info(
                "postgres.resumed",
                lane=self._lane.number,
                after=str(after),
                stored=str(ledger.stored.position),
            )

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows that are too large, and those that the columns cannot hold."""
        found = dict(self._store.inspect(batch))
        limit = self._settings.max_message_bytes
        sizes = pc.binary_length(batch.column("payload")).to_numpy()
        for row in np.flatnonzero(sizes > limit).tolist():
            found[row] = refused(
                f"it has {sizes[row]} bytes, max_message_bytes is {limit}",
                "Raise max_message_bytes, or exclude large columns.",
            )
        # The database may hold messages that it would not take today.
        held = self._require_open().ledger.held(batch)
        return {row: outcome for row, outcome in found.items() if row >= held}

    def write(self, batch: pa.RecordBatch) -> None:
        """Store the rows that the database does not hold yet."""
        with self._attempt() as opened:
            missing = opened.ledger.missing(batch)
            self._skipped += batch.num_rows - missing.num_rows
            if not missing.num_rows:
                return
            self._rows += missing.num_rows
            self._bytes += pc.sum(pc.binary_length(missing.column("payload"))).as_py()
            if not opened.session.in_transaction:
                opened.session.begin()
            self._store.prepare(opened.session, missing)
            sift(opened.session, self._store, missing, self._unaccepted, written=self._rows)

    def flush(self, *, end: bool = True) -> Receipt:
        """Commit the messages with their position. Commits nothing if a message is refused."""
        del end
        with self._attempt() as opened:
            failures = self._unaccepted.failures()
            if failures:
                opened.session.rollback()
                opened.ledger.rewind()
                receipt = Receipt(failures=failures)
            else:
                self._commit(opened)
                receipt = Receipt(messages=self._rows, bytes=self._bytes, duplicates=self._skipped)
            self._store.ended(committed=not failures)
        self._forget()
        return receipt

    def _commit(self, opened: _Opened) -> None:
        session, ledger = opened.session, opened.ledger
        ledger.verify()
        position = ledger.to_commit()
        if position is not None:
            if not session.in_transaction:
                session.begin()
            opened.positions.store(session, position)
        if session.in_transaction:
            session.commit()
        ledger.stored = position or ledger.stored
        ledger.mark()

    def close(self) -> None:
        """Close the connection, which discards what is not flushed."""
        opened, self._opened = self._opened, None
        self._forget()
        if opened is not None:
            with contextlib.suppress(Exception):
                opened.session.close()

    def _forget(self) -> None:
        self._rows = self._bytes = self._skipped = 0
        self._unaccepted = Unaccepted()

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[_Opened]:
        """Close the sink after an error: the next `open` begins from the stored position."""
        opened = self._require_open()
        try:
            yield opened
        except SinkUnreachableError as error:
            self.close()
            explained = self._explain(opened, error)
            if explained is error:
                raise
            raise explained from error
        except BaseException:
            self.close()
            raise

    def _explain(self, opened: _Opened, error: SinkUnreachableError) -> TailraceError:
        """Tell fencing from a lost connection: a successor ends the connection of this sink."""
        try:
            with contextlib.closing(self._connect_session()) as session:
                fenced = not opened.positions.owned(session)
        except TailraceError:
            return error
        return opened.positions.fenced() if fenced else error

    def _require_open(self) -> _Opened:
        if self._opened is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._name} is not open")
        return self._opened
