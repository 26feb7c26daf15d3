"""Figures of a mirror."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tailrace.mirror import Phase, Status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_report_sets_the_phase_and_calls_the_listener() -> None:
    events: list[tuple[Phase, str]] = []
    status = Status(table="t", on_event=lambda status, text: events.append((status.phase, text)))
    status.report("loading", Phase.BOOTSTRAP)
    status.report("still loading")
    assert events == [(Phase.BOOTSTRAP, "loading"), (Phase.BOOTSTRAP, "still loading")]


def test_lag_is_unknown_before_the_first_change() -> None:
    status = Status(table="t")
    status.applied(0, None, 3, NOW)
    assert (status.lag_s(NOW), status.pending) == (None, 3)


def test_lag_with_pending_messages_is_the_age_of_the_last_commit() -> None:
    status = Status(table="t")
    status.applied(2, NOW - timedelta(seconds=10), 5, NOW - timedelta(seconds=9))
    assert status.lag_s(NOW) == 10


def test_lag_without_pending_messages_is_the_duration_of_the_last_change() -> None:
    status = Status(table="t")
    status.applied(2, NOW - timedelta(seconds=10), 0, NOW - timedelta(seconds=9))
    status.applied(3, None, 0, NOW)
    assert (status.lag_s(NOW), status.changes) == (1, 5)
    status.applied(1, NOW + timedelta(seconds=5), 0, NOW)
    assert status.lag_s(NOW) == 0
