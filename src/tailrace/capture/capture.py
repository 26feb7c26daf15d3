"""Capture: one session after another, from one slot into one log.

`Capture` owns the lease and the appender as long as it runs. After a transient error of PostgreSQL
it opens the next session, with back-off. It raises every error that can mean loss (GAP, SLOT_LOST,
DIVERGED, CORRUPT, FENCED) and never changes anything on disk or in PostgreSQL to work around one.
Errors of the log are raised too, also DISK_FULL: the next start recovers the log.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from tailrace.backoff import Backoff
from tailrace.capture import reconcile
from tailrace.capture.flusher import Flusher
from tailrace.capture.heartbeat import Heartbeat
from tailrace.capture.replication import Replication
from tailrace.capture.session import Pace, Session
from tailrace.errors import CorruptError, LogError, SlotBusyError, TailraceError
from tailrace.log import awaited, retention
from tailrace.log.appender import Appender, Layout
from tailrace.log.format.layout import Codec
from tailrace.log.lease import Lease
from tailrace.log.start import parse_start
from tailrace.log.store import LocalStore
from tailrace.observe.figure import Recorder
from tailrace.observe.figures import CaptureFigures
from tailrace.postgres.catalog import existing_relations, publication_exists
from tailrace.postgres.connection import connect
from tailrace.postgres.slot import read_slot
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

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
            lease = Lease.acquire(store)
            owned.callback(lease.release)
            sessions = _Sessions(
                self._config, self._dsn, store, lease, stopping=self._stopping, clock=self._clock
            )
            owned.callback(sessions.close)
            sessions.recover()
            owned.callback(self._start_heartbeat().stop)
            self._run_sessions(sessions, until)

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
        self._replication: Replication | None = None
        self._warned: dict[str, float] = {}
        """When each stale pin was last warned about."""
        self._events = structlog.get_logger()

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
        pace = self._pace(replication.sender_timeout_s())
        with connect(self._dsn, connect_timeout_s=settings.connect_timeout_s) as sql:
            appender = self._reconciled(system, sql, replication)
            start = appender.mark.end_lsn
            replication.start(source.slot, source.publication, start, messages=settings.messages)
            # From here on no other client can advance the slot. Check again: another client may
            # have advanced it between the first check and the start.
            self._reconciled(system, sql, replication)
            dropped = appender.forget_dropped(lambda oids: existing_relations(sql, oids))
            if dropped:
                self._events.info("log.dropped_tables_forgotten", count=dropped)
        self._events.info(
            "capture.streaming", slot=source.slot, database=system.database, start=str(start)
        )
        flusher = self._flusher = self._flusher or Flusher(appender)
        return Session(
            replication, appender, flusher, pace, counts,
            housekeeping=self._housekeeping,
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
        slot = read_slot(sql, source.slot)
        confirmed = reconcile.check_slot(source.slot, slot, system, log_exists=appender is not None)
        reconcile.check_publication(
            source.publication, exists=publication_exists(sql, source.publication)
        )
        identity = reconcile.identity(system, slot=source.slot, publication=source.publication)
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
        end = reconcile.check_log(
            appender.mark,
            appender.identity,
            identity,
            system=system,
            confirmed=confirmed,
            history=replication.timeline_history,
        )
        appender.change_identity(identity, end_lsn=end)
        return appender

    def _pace(self, sender_timeout_s: float) -> Pace:
        return Pace(
            flush_s=self._config.log.flush_ms / 1000,
            flush_bytes=self._config.log.flush_bytes,
            progress_s=self._config.capture.progress_s,
            sender_timeout_s=sender_timeout_s,
        )

    def _housekeeping(self) -> None:
        """Delete expired segments, and warn about pins that are not renewed."""
        try:
            self._delete_expired()
            self._warn_of_stale_pins()
        except CorruptError as error:
            # Nothing is deleted while it is unknown what readers need.
            self._events.error("log.retention_failed", code=error.code, reason=str(error))

    def _warn_of_stale_pins(self) -> None:
        now = time.time()
        for name, pin in retention.stale(self._store, now=now).items():
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

    def _delete_expired(self) -> None:
        limits = retention.Limits(
            keep_hours=self._config.log.keep_hours, keep_bytes=self._config.log.keep_bytes
        )
        now = PgTime.of(datetime.now(UTC))
        pipelines = self._config.pipelines.items()
        readers = {name: parse_start(pipeline.start) for name, pipeline in pipelines}
        expired = retention.expired(self._store, limits, now_micros=now, readers=readers)
        if expired:
            # This runs between two reads of the stream: the rest has time until the next run.
            expired = expired[:_MAX_DELETED]
            retention.delete(self._store, expired)
            self._events.info("log.segments_deleted", count=len(expired), upto=expired[-1].file)

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
