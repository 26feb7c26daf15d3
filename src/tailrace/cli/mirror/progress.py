"""How `tailrace mirror` shows its progress: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tailrace.cli.log.render import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.mirror import Status

_REFRESHES_PER_S = 4
_LINE_S = 5.0


class Display(Protocol):
    """Where mirrors show their progress."""

    pause_s: float
    """Between two calls of `show`."""

    def event(self, status: Status, text: str) -> None:
        """Show an event of a mirror."""

    def show(self, statuses: Sequence[Status]) -> None:
        """Show the figures of all mirrors."""

    def close(self) -> None:
        """Show nothing more."""


class LiveTable:
    """A table that is redrawn in place, with events above it."""

    pause_s = 1 / _REFRESHES_PER_S

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=_REFRESHES_PER_S)
        self._live.start()

    def event(self, status: Status, text: str) -> None:
        """Print a line above the table."""
        line = Text.assemble((f"{escape(status.table)}  ", "bold"), (escape(text), "dim"))
        self._live.console.print(line)

    def show(self, statuses: Sequence[Status]) -> None:
        """Redraw the table."""
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for heading in ("table", "", "copied", ""):
            table.add_column(heading, no_wrap=True)
        for status in statuses:
            phase, count, lag = figures(status, datetime.now(UTC))
            style = "green" if phase == "following" else "yellow"
            table.add_row(escape(status.table), Text(phase, style=style), count, lag)
        self._live.update(table)

    def close(self) -> None:
        """Leave the last table on the terminal."""
        self._live.stop()


class Lines:
    """One line per event, and one line of figures every few seconds."""

    pause_s = _LINE_S

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, tuple[int, int]] = {}

    def event(self, status: Status, text: str) -> None:
        """Print a line."""
        self._console.print(Text(f"{escape(status.table)}: {escape(text)}"))

    def show(self, statuses: Sequence[Status]) -> None:
        """Print a line per table whose figures have changed."""
        for status in statuses:
            counts = status.rows, status.changes
            if self._shown.get(status.table, (0, 0)) != counts:
                self._shown[status.table] = counts
                self.event(status, " · ".join(filter(None, figures(status, datetime.now(UTC)))))

    def close(self) -> None:
        """Nothing to release."""


def open_display() -> Display:
    """The display for this terminal, or for output that is not a terminal."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        return Lines(console)
    sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return LiveTable(Console(stderr=True, highlight=False, markup=False, emoji=False))


def figures(status: Status, now: datetime) -> tuple[str, str, str]:
    """The phase of a mirror, its counts, and its lag."""
    counts = f"{status.rows:,} rows"
    if status.changes:
        counts += f", {status.changes:,} changes"
    if status.phase.value != "following":
        return status.phase.value, counts, ""
    lag_s = status.lag_s(now)
    pending = f"{status.pending:,} pending" if status.pending else "current"
    return "following", counts, pending if lag_s is None else f"{pending}, lag {duration(lag_s)}"


def duration(seconds: float) -> str:
    """A duration in readable units.

    >>> duration(0.25), duration(12.34), duration(4000)
    ('250 ms', '12.3 s', '67 min')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
