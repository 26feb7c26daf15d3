"""The demo's view: a live picture on a terminal, and a line every few seconds elsewhere.

`draw` and `sentence` are pure; `Screen` and `Lines` print them. Values of rows are untrusted: they
are never read as markup, and control characters are escaped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tailrace.change import Op
from tailrace.cli.log.render import STYLES, escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from tailrace.cli.demo.arrival import Arrival
    from tailrace.cli.demo.meter import Latency

_BARS = "▁▂▃▄▅▆▇█"
_VALUE_CHARACTERS = 28
_KEY_CHARACTERS = 13
_FRAME_LINES = 18
"""Lines of a picture that are not changes, some of them folded."""
_REFRESHES_PER_S = 8
_LINE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Everything on the screen at one moment."""

    places: Sequence[tuple[str, str]]
    """The servers: a name, and a command that connects to it."""
    processes: Sequence[str]
    received: int
    pending: int
    """Changes committed but not received yet."""
    per_second: float
    history: Sequence[int]
    latency: Latency | None
    recent: Sequence[Arrival]
    """Newest first."""
    keys: Mapping[str, Sequence[str]]
    """Key columns of a table."""
    mirror: str = ""
    """State of the local copy, as text."""
    webhooks: str = ""
    """State of the receiver of webhooks, as text."""
    note: str = ""


def draw(picture: Picture, *, height: int) -> RenderableType:
    """The picture, in at most `height` lines."""
    places = Table.grid(padding=(0, 2))
    places.add_column(style="dim", no_wrap=True)
    places.add_column(overflow="fold")
    for name, command in picture.places:
        places.add_row(Text(name), Text(escape(command)))
    places.add_row(Text("processes"), Text(" · ".join(picture.processes)))
    panel = Panel(places, title=Text("tailrace demo", style="bold"), title_align="left")
    rows = max(height - _FRAME_LINES, 1)
    note = Text(picture.note or "Ctrl-C stops, compares the counts and cleans up", style="dim")
    return Group(panel, _figures(picture), Text(), _changes(picture, rows), note)


def _figures(picture: Picture) -> RenderableType:
    rate = Text.assemble((f"{picture.per_second:>6,.0f}", "bold"), " changes/s  ")
    rate.append(sparkline(picture.history), style="green")
    totals = Text.assemble(
        (f"{picture.received:>6,}", "bold"),
        " received  ",
        (f"{picture.pending:,}", "bold"),
        " pending  commit → received ",
        (latency(picture.latency), "bold"),
    )
    others = {"mirror": picture.mirror, "webhooks": picture.webhooks}
    lines = [Text.assemble(f"{name}  ", (text, "bold")) for name, text in others.items() if text]
    return Group(rate, totals, *lines)


def latency(measured: Latency | None) -> str:
    """Both percentiles, of the last ten seconds."""
    return f"p50 {measured.p50_ms:,.0f} ms, p99 {measured.p99_ms:,.0f} ms" if measured else "—"


def sparkline(values: Sequence[int]) -> str:
    """Values as bars: the highest value is a full bar, only zero is empty.

    >>> sparkline([0, 1, 4, 8])
    ' ▁▄█'
    """
    top = max(values, default=0) or 1
    return "".join(_BARS[-(-value * len(_BARS) // top) - 1] if value else " " for value in values)


def _changes(picture: Picture, rows: int) -> Table:
    table = Table(box=None, padding=(0, 1), expand=True, header_style="dim")
    for name in ("change", "table", "key"):
        table.add_column(name, no_wrap=True)
    table.add_column("columns", no_wrap=True, ratio=1, overflow="ellipsis")
    table.add_column("latency", no_wrap=True, justify="right")
    for arrival in list(picture.recent)[:rows]:
        keys = picture.keys.get(arrival.table, ())
        table.add_row(
            Text(arrival.op.name, style=STYLES[arrival.op]),
            Text(escape(arrival.table)),
            Text(key(arrival, keys)),
            Text("  ".join(columns(arrival, keys))),
            Text(f"{arrival.latency_ms:,.0f} ms"),
        )
    return table


def key(arrival: Arrival, keys: Sequence[str]) -> str:
    """The values of the key columns."""
    shown = ", ".join(_value(arrival.data[name]) for name in keys if name in arrival.data)
    return _short(shown, _KEY_CHARACTERS)


def columns(arrival: Arrival, keys: Sequence[str]) -> Iterator[str]:
    """The columns to show: a key that changed, then the columns outside the key."""
    if arrival.op is Op.MESSAGE:
        yield _short(escape(str(arrival.data.get("content", ""))), 2 * _VALUE_CHARACTERS)
        return
    for name, value in arrival.old.items():
        if name in keys and value != arrival.data.get(name):
            yield f"{escape(name)}: {_value(value)} → {_value(arrival.data.get(name))}"
    if arrival.op is Op.DELETE:
        # With the default replica identity, an old row has only its key.
        return
    for name, value in arrival.data.items():
        if name not in keys:
            yield f"{escape(name)}: {_value(value)}"
    for name in arrival.unchanged:
        yield f"{escape(name)}: ⟨unchanged⟩"


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    # Cut before escaping, so that a long value costs no more than a short one.
    return _short(escape(text[: _VALUE_CHARACTERS + 1]), _VALUE_CHARACTERS)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def change_line(arrival: Arrival, keys: Mapping[str, Sequence[str]]) -> str:
    """One change as one line."""
    own = keys.get(arrival.table, ())
    parts = [arrival.op.name, escape(arrival.table), key(arrival, own), *columns(arrival, own)]
    return "  ".join(part for part in parts if part)


def sentence(picture: Picture) -> str:
    """The figures as one line."""
    text = (
        f"{picture.received:,} changes received · {picture.per_second:,.0f} changes/s · "
        f"{picture.pending:,} pending · commit → received {latency(picture.latency)}"
    )
    text += f" · mirror {picture.mirror}" if picture.mirror else ""
    return text + (f" · webhooks {picture.webhooks}" if picture.webhooks else "")


class View(Protocol):
    """Shows the demo's steps and figures."""

    def step(self, text: str) -> None:
        """Begin a step; the step before it is done."""

    def show(self, picture: Picture) -> None:
        """Show the present state."""

    def close(self) -> None:
        """End the view. May be called twice."""


class Screen:
    """A view that redraws in place; the last picture stays on the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps: list[str] = []
        self._live = Live(
            console=console, refresh_per_second=_REFRESHES_PER_S, vertical_overflow="crop"
        )
        self._live.start()

    def step(self, text: str) -> None:
        """Tick off the step before, and show a spinner beside this one."""
        done = [Text.assemble(("✓ ", "green"), step) for step in self._steps]
        self._steps.append(text)
        self._live.update(Group(*done, Spinner("dots", Text(text))), refresh=True)

    def show(self, picture: Picture) -> None:
        """Redraw."""
        self._live.update(draw(picture, height=self._console.height))

    def close(self) -> None:
        """Leave the last picture and show the cursor again."""
        self._live.stop()


class Lines:
    """A view that only appends: one line per step, then one every few seconds."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._began = clock()
        self._due = 0.0

    def step(self, text: str) -> None:
        """Print a line."""
        self._print(text)

    def show(self, picture: Picture) -> None:
        """Print the servers and the first change once, then the figures when they are due."""
        now = self._clock()
        if not picture.recent or now < self._due:
            return
        if not self._due:
            for name, command in picture.places:
                self._print(f"{name}: {command}")
            first = change_line(picture.recent[-1], picture.keys)
            self._print(f"first change after {now - self._began:.1f} s: {first}")
        else:
            self._print(sentence(picture))
        self._due = now + _LINE_S

    def _print(self, text: str) -> None:
        self._console.print(Text(f"· {text}", style="dim"))

    def close(self) -> None:
        """Nothing to release."""


def open_view(console: Console) -> View:
    """A live view on a terminal, lines elsewhere."""
    if not console.is_terminal:
        return Lines(console)
    # Not this console: it folds no lines, and columns need folding.
    return Screen(Console(highlight=False, markup=False, emoji=False))
