"""The WAL monitor: how much PostgreSQL keeps for the slot, asked every half minute.

A slot that nobody reads fills the server's disk, so this looks from the server's side, over a
short connection of its own, and goes on looking when capture is down. The last answer stays when
the server cannot be asked, with the reason beside it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import TailraceError
from tailrace.observe.metrics import SlotFigures
from tailrace.postgres.connection import connect
from tailrace.postgres.slot import read_slot

if TYPE_CHECKING:
    import threading

    from tailrace.config import Config
    from tailrace.postgres.slot import SlotState

CHECK_S = 30.0
WARNING_BYTES = 512 << 20
CRITICAL_BYTES = 1 << 30


class Monitor:
    """Asks from a thread of its own; `figures` is the last answer."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._events = structlog.get_logger().bind(slot=config.source.slot)
        self.figures = SlotFigures()

    def run(self, stop: threading.Event) -> None:
        """Ask until told to stop."""
        while True:
            self.check()
            if stop.wait(CHECK_S):
                return

    def check(self) -> None:
        """Ask once."""
        source = self._config.source
        now = datetime.now(UTC).isoformat()
        try:
            with connect(
                source.dsn.get_secret_value(),
                application_name="tailrace monitor",
                connect_timeout_s=self._config.capture.connect_timeout_s,
            ) as connection:
                slot = read_slot(connection, source.slot)
        except TailraceError as error:
            self.figures = replace(
                self.figures, active=False, checked_at=now, error=f"{error.code}: {error}"
            )
            self._events.warning("monitor.unanswered", code=error.code, reason=str(error))
            return
        if slot is None:
            self.figures = SlotFigures(checked_at=now, error="the slot does not exist")
            self._events.error("monitor.no_slot")
            return
        self.figures = _figures(slot, now)
        self.warn(self.figures.kept_wal_bytes or 0)

    def warn(self, kept_bytes: int) -> None:
        """Say so when the server keeps much for us."""
        if kept_bytes >= CRITICAL_BYTES:
            self._events.error("monitor.wal_lag", bytes=kept_bytes, limit=CRITICAL_BYTES)
        elif kept_bytes >= WARNING_BYTES:
            self._events.warning("monitor.wal_lag", bytes=kept_bytes, limit=WARNING_BYTES)


def _figures(slot: SlotState, now: str) -> SlotFigures:
    kept, restart, confirmed = slot.kept_wal_bytes, slot.restart_lsn, slot.confirmed_flush_lsn
    lag = None
    if kept is not None and restart is not None and confirmed is not None:
        lag = max(restart + kept - confirmed, 0)
    return SlotFigures(
        active=slot.active_pid is not None,
        kept_wal_bytes=kept,
        lag_bytes=lag,
        checked_at=now,
        error=f"lost: {slot.invalidation_reason or slot.wal_status}" if slot.lost else "",
    )
