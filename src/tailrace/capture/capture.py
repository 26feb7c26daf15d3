"""Capture: one session after another, from one slot into one log.

`Capture` owns the lease and the appender as long as it runs. After a transient error of PostgreSQL
it opens the next session, with back-off. It raises every error that can mean loss (GAP, SLOT_LOST,
DIVERGED, CORRUPT, FENCED) and never changes anything on disk or in PostgreSQL to work around one.
FENCED is also the end of a leader whose log another machine has taken over: every connection looks
for the slot of a higher term (`tailrace.log.term`), before the stream and once it has started.
Errors of the log are raised too, also DISK_FULL: the next start recovers the log.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING

import structlog

from tailrace.backoff import Backoff
from tailrace.capture import followers, reconcile
from tailrace.capture.arrivals import Arrivals
from tailrace.capture.flusher import Flusher
from tailrace.capture.heartbeat import Heartbeat
from tailrace.capture.replication import Replication
from tailrace.capture.session import Pace, Session
from tailrace.errors import (
    CorruptError,
    DiskFullError,
    LogError,
    SlotBusyError,
    SlotLostError,
    TailraceError,
)
from tailrace.log import awaited, retention
from tailrace.log.appender import Appender, Layout
from tailrace.log.format.layout import Codec
from tailrace.log.lease import Lease
from tailrace.log.reader import Log
from tailrace.log.start import parse_start
from tailrace.log.store import LocalStore
from tailrace.log.term import slot_name, term_of
from tailrace.observe.figure import Recorder
from tailrace.observe.figures import CaptureFigures
from tailrace.postgres.catalog import existing_relations, publication_exists
from tailrace.postgres.connection import connect
from tailrace.postgres.slot import read_slot
from tailrace.postgres.slot_terms import check_not_taken_over, read_terms

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from tailrace.capture.gate import Gate
    from tailrace.capture.replication import System
    from tailrace.config import Config
    from tailrace.position import Lsn

_FIRST_RETRY_S, _MAX_RETRY_S = 0.2, 10.0
_POLL_S = 0.05
_MAX_DELETED = 32
"""Segments to delete at a time."""
_WARN_INTERVAL_S = 3600.0


class Capture:
    """Captures one source into one log until `stopping` is true."""

    def __init__(
        self,
        config: Config,
        *,
        stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._dsn = config.source.dsn.get_secret_value()
        self._stopping = stopping
        self._clock = clock
        self._events = structlog.get_logger()
        self.counts = Recorder(CaptureFigures())

    def run(self, *, until: Lsn | None = None) -> None:
        """Capture until `stopping` is true or everything up to `until` is durable."""
        store = LocalStore(self._config.log.path, create=True)
        with contextlib.ExitStack() as owned:
            sessions = self._open_log(store, owned)
            owned.callback(self._start_heartbeat().stop)
            self._run_sessions(sessions, until)

    def _open_log(self, store: LocalStore, owned: contextlib.ExitStack) -> _Sessions:
        """Acquire the lease and recover the log; if the disk is full, after retention has run.

        Otherwise a log that has filled its disk would never run retention again, though its readers
        have delivered everything.
        """
        try:
            return self._try_to_open_log(store, owned)
        except DiskFullError:
            if not self._free_space(store):
                raise
            return self._try_to_open_log(store, owned)

    def _try_to_open_log(self, store: LocalStore, owned: contextlib.ExitStack) -> _Sessions:
        with contextlib.ExitStack() as opened:
            lease = Lease.acquire(store)
            opened.callback(lease.release)
            sessions = _Sessions(
                *(self._config, self._dsn, store, lease),
                stopping=self._stopping,
                clock=self._clock,
            )
            opened.callback(sessions.close)
            sessions.recover()
            owned.push(opened.pop_all())
        return sessions

    def _free_space(self, store: LocalStore) -> bool:
        """Delete expired segments. False if there are none."""
        # There may be no log yet, or a damaged one; the full disk is what is reported.
        with contextlib.suppress(TailraceError):
            # PostgreSQL is not connected yet: the last commit is a lower bound of its time.
            return _delete_expired(store, self._config, now_micros=Log(store).end().time)
        return False

    def _start_heartbeat(self) -> Heartbeat:
        settings = self._config.capture
        heartbeat = Heartbeat(
            self._dsn,
            interval_s=settings.heartbeat_s,
            connect_timeout_s=settings.connect_timeout_s,
        )
        if settings.heartbeat_s:
            heartbeat.start()
        return heartbeat

    def _run_sessions(self, sessions: _Sessions, until: Lsn | None) -> None:
        """One session after another, with back-off between them."""
        backoff = Backoff(first_s=_FIRST_RETRY_S, max_s=_MAX_RETRY_S, clock=self._clock)
        ever_streamed = False
        while not self._stopping():
            try:
                session = sessions.open(self.counts)
                ever_streamed = True
                backoff.running()
                session.run(self._stopping, until=until)
            except TailraceError as error:
                sessions.end()
                if self._stopping() and error.transient:
                    return
                # A first connection that fails is reported: a wrong setting looks the same as an
                # outage. Later failures are outages.
                # After an error of the log the appender is closed: the next start recovers it.
                retries = error.transient and not isinstance(error, LogError)
                if not retries or not (ever_streamed or isinstance(error, SlotBusyError)):
                    raise
                self._wait_for_retry(error, backoff.next_s())
            else:
                sessions.end()
                return

    def _wait_for_retry(self, error: TailraceError, delay_s: float) -> None:
        self._events.warning(
            "capture.reconnecting",
            code=error.code,
            reason=str(error),
            retry_in_s=round(delay_s, 1),
        )
        deadline = self._clock() + delay_s
        while self._clock() < deadline and not self._stopping():
            time.sleep(_POLL_S)


class _Sessions:
    """Opens sessions on one log: connects, and checks that the log and the slot fit."""

    def __init__(
        self,
        config: Config,
        dsn: str,
        store: LocalStore,
        lease: Lease,
        *,
        stopping: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._dsn = dsn
        self._store = store
        self._lease = lease
        self._stopping = stopping
        self._clock = clock
        self._layout = Layout(
            segment_bytes=config.log.segment_bytes, codec=Codec[config.log.codec.upper()]
        )
        self._appender: Appender | None = None
        self._flusher: Flusher | None = None
        self._arrivals = Arrivals()
        self._replication: Replication | None = None
        self._server_time: tuple[int, float] = (0, 0.0)
        """The server's time when the session was opened, and this process's clock then."""
        self._warned: dict[str, float] = {}
        """When each stale pin was last warned about."""
        self._stale: dict[str, retention.Pin] = {}
        """The pins that were stale at the last look."""
        self._events = structlog.get_logger()

    @property
    def _term(self) -> int:
        return term_of(self._lease.epoch)

    @property
    def _slot(self) -> str:
        return slot_name(self._config.source.slot, self._term)

    def recover(self) -> None:
        """Open and recover the log, if there is one."""
        self._appender = Appender.open(self._store, self._lease, self._layout)
        if self._appender is not None:
            mark = self._appender.mark
            self._events.info("log.recovered", end=str(mark.end_lsn), epoch=self._lease.epoch)

    def open(self, counts: Recorder[CaptureFigures]) -> Session:
        """Connect, check that no change is missing, and start to stream where the log ends."""
        self._drop_open_transaction()
        source, settings = self._config.source, self._config.capture
        replication = self._replication = Replication.connect(
            self._dsn, timeout_s=settings.connect_timeout_s, stopping=self._stopping
        )
        system = replication.identify()
        self._server_time = (system.now, self._clock())
        pace = self._pace(replication.sender_timeout_s())
        with connect(self._dsn, connect_timeout_s=settings.connect_timeout_s) as sql:
            appender = self._reconciled(system, sql, replication)
            start = appender.mark.end_lsn
            try:
                replication.start(self._slot, source.publication, start, messages=settings.messages)
            except SlotLostError:
                self._refuse_if_taken_over(sql)  # and dropped since it was checked
                raise
            # From here on no other client can advance the slot. Check again: another client may
            # have advanced it between the first check and the start.
            self._reconciled(system, sql, replication)
            dropped = appender.forget_dropped(lambda oids: existing_relations(sql, oids))
            if dropped:
                self._events.info("log.dropped_tables_forgotten", count=dropped)
            gate = followers.open_gate(
                self._config, self._store, appender.mark, sql, term=self._term
            )
        self._events.info(
            "capture.streaming", slot=self._slot, database=system.database, start=str(start)
        )
        if self._flusher is None:
            self._arrivals.open(self._config.log.path, appender.mark.end_lsn)
            self._flusher = Flusher(appender, self._arrivals.note)
        return Session(
            replication, appender, self._flusher, pace, counts,
            housekeeping=partial(self._keep_house, gate),
            gate=gate,
            arrivals=self._arrivals,
            awaited=lambda: awaited.read(self._store),
            clock=self._clock,
        )  # fmt: skip

    def _drop_open_transaction(self) -> None:
        if self._flusher is not None:
            self._flusher.finish()
        if self._appender is not None:
            self._appender.rewind()

    def _reconciled(self, system: System, sql: Connection, replication: Replication) -> Appender:
        """The appender of a log that fits the slot. Creates the log if there is none."""
        source, appender = self._config.source, self._appender
        identity = reconcile.identity(system, slot=self._slot, publication=source.publication)
        slot = read_slot(sql, self._slot)
        # A successor may have moved the slot: that is no gap, and its lease tells.
        self._lease.check()
        # A successor on another machine may have dropped it. That is no loss, and its slot tells.
        self._refuse_if_taken_over(sql)
        end = None
        if appender is not None:
            end = reconcile.check_history(
                appender.mark,
                appender.identity,
                identity,
                system=system,
                history=replication.timeline_history,
            )
        confirmed = reconcile.check_slot(self._slot, slot, system, log_exists=appender is not None)
        reconcile.check_publication(
            source.publication, exists=publication_exists(sql, source.publication)
        )
        if appender is None:
            appender = self._appender = Appender.create(
                self._store,
                self._lease,
                self._layout,
                identity=identity,
                start_lsn=confirmed,
                log_id=uuid.uuid4().hex,
                time=system.now,
            )
            self._events.info("log.created", path=str(self._config.log.path), start=str(confirmed))
        end = appender.mark.end_lsn if end is None else end
        reconcile.check_gap(self._slot, confirmed, end)
        appender.change_identity(identity, end_lsn=end)
        return appender

    def _refuse_if_taken_over(self, sql: Connection) -> None:
        base = self._config.source.slot
        check_not_taken_over(read_terms(sql, base), base=base, term=self._term)

    def _pace(self, sender_timeout_s: float) -> Pace:
        return Pace(
            flush_s=self._config.log.flush_ms / 1000,
            flush_bytes=self._config.log.flush_bytes,
            progress_s=self._config.capture.progress_s,
            sender_timeout_s=sender_timeout_s,
        )

    def _keep_house(self, gate: Gate) -> None:
        if gate.due:
            followers.settle(self._config, gate, term=self._term)
        if self._config.replication.followers:
            followers.check_leads(self._config, term=self._term)
        self._housekeeping()

    def _housekeeping(self) -> None:
        """Delete expired segments, and warn about pins that are not renewed."""
        try:
            _delete_expired(self._store, self._config, now_micros=self._now_micros())
            self._warn_of_stale_pins()
        except CorruptError as error:
            # Nothing is deleted while it is unknown what readers need.
            self._events.error("log.retention_failed", code=error.code, reason=str(error))

    def _warn_of_stale_pins(self) -> None:
        now, before = time.time(), self._stale
        self._stale = retention.stale(self._store, now=now)
        for name, pin in self._stale.items():
            if before.get(name) != pin:
                # After a jump of this machine's clock every pin looks old until it is renewed.
                continue
            warned_s = self._warned.get(name, -math.inf)
            if self._clock() - warned_s > _WARN_INTERVAL_S:
                self._warned[name] = self._clock()
                self._events.warning(
                    "log.pin_stale",
                    pin=name,
                    position=str(pin.position),
                    hours=round((now - pin.renewed_at) / 3600, 1),
                    fix=f"Start its reader, or give it up: tailrace log unpin {name}",
                )

    def _now_micros(self) -> int:
        """The server's time, in which commit times are; a jump of this machine's clock is no age.

        It counts from 2000-01-01 UTC.
        """
        server_micros, opened_at = self._server_time
        return server_micros + int((self._clock() - opened_at) * 1_000_000)

    def end(self) -> None:
        """Disconnect from PostgreSQL."""
        if self._replication is not None:
            self._replication.close()
            self._replication = None

    def close(self) -> None:
        """Disconnect, stop the flusher and close the log."""
        self.end()
        if self._flusher is not None:
            self._flusher.close()
        if self._appender is not None:
            self._appender.close()
        self._arrivals.close()


def _delete_expired(store: LocalStore, config: Config, *, now_micros: int) -> bool:
    """Delete what retention allows, a part at a time. Whether there was anything."""
    limits = retention.Limits(keep_hours=config.log.keep_hours, keep_bytes=config.log.keep_bytes)
    readers = {name: parse_start(pipeline.start) for name, pipeline in config.pipelines.items()}
    expired = retention.expired(store, limits, now_micros=now_micros, readers=readers)
    if expired:
        # This runs between two reads of the stream: the rest has time until the next run.
        expired = expired[:_MAX_DELETED]
        retention.delete(store, expired)
        structlog.get_logger().info(
            "log.segments_deleted", count=len(expired), upto=expired[-1].file
        )
    return bool(expired)
