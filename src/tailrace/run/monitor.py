"""The WAL monitor: asks PostgreSQL every 30 seconds how much WAL it keeps for the slot.

A slot without a reader fills the server's disk. The monitor therefore asks the server, over a
short connection of its own, also while capture is down. If the server does not answer, the last
figures stay, with the reason beside them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import TailraceError
from tailrace.log.term import slot_name
from tailrace.observe.kept import SlotFigures
from tailrace.postgres.connection import connect
from tailrace.postgres.publication import read_publication
from tailrace.postgres.slot import read_slot
from tailrace.postgres.slot_terms import present_term, read_terms

if TYPE_CHECKING:
    import threading

    from tailrace.config import Config
    from tailrace.postgres.slot import SlotState

CHECK_S = 30.0
WARNING_BYTES = 512 << 20
CRITICAL_BYTES = 1 << 30


class Monitor:
    """Asks from a thread; `figures` is the last answer."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._events = structlog.get_logger().bind(slot=config.source.slot)
        self.figures = SlotFigures()

    def run(self, stop: threading.Event) -> None:
        """Ask until `stop` is set."""
        while True:
            self.check()
            if stop.wait(CHECK_S):
                return

    def check(self) -> None:
        """Ask once."""
        source = self._config.source
        now = datetime.now(UTC).isoformat()
        try:
            term = present_term(self._config)
            with connect(
                source.dsn.get_secret_value(),
                application_name="tailrace monitor",
                connect_timeout_s=self._config.capture.connect_timeout_s,
            ) as connection:
                slot = read_slot(connection, slot_name(source.slot, term))
                terms = read_terms(connection, source.slot)
                publication = read_publication(connection, source.publication)
        except TailraceError as error:
            self.figures = replace(
                self.figures, active=False, checked_at=now, error=f"{error.code}: {error}"
            )
            self._events.warning("monitor.check_failed", code=error.code, reason=str(error))
            return
        if slot is None and max(terms, default=0) > term:
            name = terms[max(terms)].name
            self.figures = SlotFigures(checked_at=now, error=f"taken over: slot {name} exists")
            self._events.error("monitor.taken_over", by=name, hint="Run: tailrace follow")
            return
        if slot is None:
            self.figures = SlotFigures(checked_at=now, error="the slot does not exist")
            self._events.error("monitor.slot_missing", hint="Run: tailrace init")
            return
        tables = len(publication.tables) if publication else 0
        self.figures = replace(slot_figures(slot, now), tables=tables)
        self.warn(self.figures.kept_wal_bytes or 0)

    def warn(self, kept_bytes: int) -> None:
        """Log a warning if PostgreSQL keeps much WAL for the slot."""
        if kept_bytes >= CRITICAL_BYTES:
            self._events.error("monitor.wal_lag", bytes=kept_bytes, limit=CRITICAL_BYTES)
        elif kept_bytes >= WARNING_BYTES:
            self._events.warning("monitor.wal_lag", bytes=kept_bytes, limit=WARNING_BYTES)


def slot_figures(slot: SlotState, now: str) -> SlotFigures:
    """The figures of a slot. The server's end is `restart_lsn` plus the WAL it keeps."""
    kept_bytes, restart, confirmed = slot.kept_wal_bytes, slot.restart_lsn, slot.confirmed_flush_lsn
    lag = None
    if kept_bytes is not None and restart is not None and confirmed is not None:
        lag = max(restart + kept_bytes - confirmed, 0)
    return SlotFigures(
        active=slot.active_pid is not None,
        kept_wal_bytes=kept_bytes,
        lag_bytes=lag,
        checked_at=now,
        error=f"lost: {slot.invalidation_reason or slot.wal_status}" if slot.lost else None,
    )
