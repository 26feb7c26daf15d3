"""What `tailrace mirror` prints."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

from rich.console import Console

from tailrace.cli.mirror.progress import Lines, figures
from tailrace.mirror import Phase, Status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_figures_of_each_phase() -> None:
    status = Status(table="users", rows=40_000, phase=Phase.BOOTSTRAP)
    assert figures(status, NOW) == ("loading", "40,000 rows", "")
    status.phase = Phase.FOLLOWING
    assert figures(status, NOW) == ("following", "40,000 rows", "current")
    status.applied(312, NOW - timedelta(milliseconds=180), 0, NOW)
    assert figures(status, NOW) == (
        "following", "40,000 rows, 312 changes", "current, lag 180 ms",
    )  # fmt: skip
    status.applied(1, NOW - timedelta(seconds=3), 7, NOW)
    assert figures(status, NOW)[2] == "7 pending, lag 3.0 s"


def test_lines_repeat_figures_only_when_they_change() -> None:
    output = io.StringIO()
    lines = Lines(Console(file=output, width=200))
    status = Status(table="users", rows=1)
    lines.event(status, "requesting a snapshot")
    lines.show([status])
    lines.show([status])
    status.rows = 2
    lines.show([status])
    lines.close()
    assert output.getvalue().splitlines() == [
        "users: requesting a snapshot",
        "users: starting · 1 rows",
        "users: starting · 2 rows",
    ]
