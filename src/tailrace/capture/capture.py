"""Stage ①: receive, append, fsync, acknowledge; and again after every transient error.

`Capture` owns the lease and the appender for its whole life and runs one `Session` after another.
What can mean loss ends it: GAP, SLOT_LOST, DIVERGED, DISK_FULL, CORRUPT and FENCED are raised, with
their exit codes and hints, and nothing on disk or in PostgreSQL is changed to get round them.
"""

from __future__ import annotations

import contextlib
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg
import structlog

from tailrace.capture import reconcile
from tailrace.capture.flusher import Flusher
from tailrace.capture.heartbeat import Heartbeat
from tailrace.capture.replication import Replication
from tailrace.capture.session import Pace, Session
from tailrace.errors import Retry, SlotBusyError, TailraceError
from tailrace.log import awaited, retention
from tailrace.log.appender import Appender, Layout
from tailrace.log.format.layout import Codec
from tailrace.log.lease import Lease
from tailrace.log.store import LocalStore
from tailrace.observe.figure import Recorder
from tailrace.observe.figures import CaptureFigures
from tailrace.postgres.connection import connect, translate_error
from tailrace.postgres.slot import read_slot
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from tailrace.capture.replication import System
    from tailrace.config import Config
    from tailrace.position import Lsn

_BACK_OFF_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Capture:
    """One source into one log, until told to stop."""

    def __init__(self, config: Config, *, stopping: Callable[[], bool]) -> None:
        self._config = config
        self._dsn = config.source.dsn.get_secret_value()
        self._stopping = stopping
        self._events = structlog.get_logger()
        self.counts = Recorder(CaptureFigures())

    def run(self, *, until: Lsn | None = None) -> None:
        """Capture until `stopping` says so or everything up to `until` is durable."""
        store = LocalStore(self._config.log.path, create=True)
        with contextlib.ExitStack() as owned:
            lease = Lease.acquire(store)
            owned.callback(lease.release)
            source = _Source(self._config, self._dsn, store, lease, self._stopping)
            owned.callback(source.close)
            source.recover()
            owned.callback(self._start_heartbeat().stop)
            self._attempts(source, until)

    def _start_heartbeat(self) -> Heartbeat:
        settings = self._config.capture
        beat = Heartbeat(
            self._dsn, every_s=settings.heartbeat_s, connect_timeout_s=settings.connect_timeout_s
        )
        if settings.heartbeat_s:
            beat.start()
        return beat

    def _attempts(self, source: _Source, until: Lsn | None) -> None:
        """One session after another, with back-off between them."""
        failures = 0
        ever_streamed = False
        while not self._stopping():
            streaming_since = None
            try:
                session = source.open_session(self.counts)
                ever_streamed, streaming_since = True, time.monotonic()
                session.run(self._stopping, until=until)
            except TailraceError as error:
                source.end_session()
                transient = error.retry is Retry.BACK_OFF
                if self._stopping() and transient:
                    return
                # A first connection that fails is a mistake to report; later ones are outages.
                if not transient or not (ever_streamed or isinstance(error, SlotBusyError)):
                    raise
                if streaming_since and time.monotonic() - streaming_since > _BACK_OFF_S[-1]:
                    failures = 0
                self._back_off(error, failures)
                failures += 1
            else:
                source.end_session()
                return

    def _back_off(self, error: TailraceError, failures: int) -> None:
        delay_s = _BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)] * random.uniform(0.8, 1.2)  # noqa: S311
        self._events.warning(
            "capture.reconnecting", code=error.code, reason=str(error), in_s=round(delay_s, 1)
        )
        deadline = time.monotonic() + delay_s
        while time.monotonic() < deadline and not self._stopping():
            time.sleep(0.05)


class _Source:
    """The log on one side, the slot on the other, and whether they fit."""

    def __init__(
        self,
        config: Config,
        dsn: str,
        store: LocalStore,
        lease: Lease,
        stopping: Callable[[], bool],
    ) -> None:
        self._config = config
        self._dsn = dsn
        self._store = store
        self._lease = lease
        self._stopping = stopping
        self._layout = Layout(
            segment_bytes=config.log.segment_bytes, codec=Codec[config.log.codec.upper()]
        )
        self._appender: Appender | None = None
        self._flusher: Flusher | None = None
        self._replication: Replication | None = None
        self._events = structlog.get_logger()

    def recover(self) -> None:
        """Open the log as the last run left it."""
        self._appender = Appender.open(self._store, self._lease, self._layout)
        if self._appender is not None:
            mark = self._appender.mark
            self._events.info("log.recovered", end=str(mark.end_lsn), epoch=self._lease.epoch)

    def open_session(self, counts: Recorder[CaptureFigures]) -> Session:
        """Connect, check that nothing is missing, and start to stream where the log ends."""
        self._forget_unfinished()
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
            # Nobody else can move the slot from here on: look again, so nothing slips between.
            self._reconciled(system, sql, replication)
        self._events.info(
            "capture.streaming", slot=source.slot, database=system.database, start=str(start)
        )
        flusher = self._flusher = self._flusher or Flusher(appender)
        return Session(
            replication, appender, flusher, pace, counts,
            housekeeping=self._housekeeping,
            awaited=lambda: awaited.read(self._store),
        )  # fmt: skip

    def _forget_unfinished(self) -> None:
        if self._flusher is not None:
            self._flusher.wait(60)
        if self._appender is not None:
            self._appender.rewind()

    def _reconciled(self, system: System, sql: Connection, replication: Replication) -> Appender:
        """The log to append to, made if there is none, once it is sure that it fits the slot."""
        source, appender = self._config.source, self._appender
        slot = read_slot(sql, source.slot)
        confirmed = reconcile.check_slot(source.slot, slot, system, log_exists=appender is not None)
        reconcile.check_publication(
            source.publication, exists=_publication_exists(sql, source.publication)
        )
        wanted = reconcile.identity(system, slot=source.slot, publication=source.publication)
        if appender is None:
            appender = self._appender = Appender.create(
                self._store,
                self._lease,
                self._layout,
                identity=wanted,
                start_lsn=confirmed,
                time=system.now,
            )
            self._events.info("log.created", path=str(self._config.log.path), start=str(confirmed))
        reconcile.check_log(
            appender.mark,
            appender.identity,
            wanted,
            system=system,
            confirmed=confirmed,
            history=replication.timeline_history,
        )
        appender.change_identity(wanted)
        return appender

    def _pace(self, sender_timeout_s: float) -> Pace:
        return Pace(
            flush_s=self._config.log.flush_ms / 1000,
            flush_bytes=self._config.log.flush_bytes,
            progress_s=self._config.capture.progress_s,
            sender_timeout_s=sender_timeout_s,
        )

    def _housekeeping(self) -> None:
        """Delete what retention no longer keeps."""
        limits = retention.Limits(
            keep_hours=self._config.log.keep_hours, keep_bytes=self._config.log.keep_bytes
        )
        now = PgTime.of(datetime.now(UTC))
        expired = retention.expired(self._store, limits, now_micros=now)
        if expired:
            retention.delete(self._store, expired)
            self._events.info("log.segments_deleted", count=len(expired), upto=expired[-1].file)

    def end_session(self) -> None:
        """Disconnect."""
        if self._replication is not None:
            self._replication.close()
            self._replication = None

    def close(self) -> None:
        """Let go of everything."""
        self.end_session()
        if self._flusher is not None:
            self._flusher.close()
        if self._appender is not None:
            self._appender.close()


def _publication_exists(sql: Connection, name: str) -> bool:
    try:
        row = sql.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)).fetchone()
    except psycopg.Error as error:
        raise translate_error(sql, error) from error
    return row is not None
