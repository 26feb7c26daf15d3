"""The figures of a slot. `tests/integration/test_http.py` runs the monitor against a server."""

from __future__ import annotations

from dataclasses import replace

from tailrace.observe.kept import SlotFigures
from tailrace.position import Lsn
from tailrace.postgres.slot import SlotState
from tailrace.run.monitor import slot_figures

SLOT = SlotState(
    name="tailrace",
    plugin="pgoutput",
    slot_type="logical",
    database="shop",
    temporary=False,
    active_pid=7,
    restart_lsn=Lsn(1000),
    confirmed_flush_lsn=Lsn(1400),
    wal_status="reserved",
    safe_wal_bytes=None,
    kept_wal_bytes=500,
)


def test_the_lag_ends_at_the_acknowledged_position() -> None:
    assert slot_figures(SLOT, "now") == SlotFigures(
        active=True, kept_wal_bytes=500, lag_bytes=100, checked_at="now"
    )


def test_the_lag_is_never_negative() -> None:
    ahead = replace(SLOT, confirmed_flush_lsn=Lsn(1600))
    assert slot_figures(ahead, "now").lag_bytes == 0


def test_without_positions_the_lag_is_unknown() -> None:
    figures = slot_figures(replace(SLOT, restart_lsn=None, active_pid=None), "now")
    assert (figures.active, figures.kept_wal_bytes, figures.lag_bytes) == (False, 500, None)


def test_a_lost_slot_has_a_reason() -> None:
    assert slot_figures(replace(SLOT, wal_status="lost"), "now").error == "lost: lost"
    removed = replace(SLOT, invalidation_reason="wal_removed")
    assert slot_figures(removed, "now").error == "lost: wal_removed"
