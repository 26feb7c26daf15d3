"""Line charts as SVG, without styles of their own: the stylesheet has the colours.

A chart is for eyes only. The page shows `table_of` the same points beside it, for everyone else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from markupsafe import Markup

from tailrace.console.numbers import FORMATS, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Points = Sequence[tuple[float, float | None]]

_WIDTH, _HEIGHT = 380, 118
_LEFT, _TOP, _RIGHT, _BOTTOM = 4, 16, 4, 18
_MAX_POINTS = 140
_TABLE_ROWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a chart: its name, its metric and its points."""

    name: str
    metric: str
    points: Points


def chart(title: str, lines: Sequence[Line], form: str) -> Markup:
    """A chart of lines that share a scale from 0 to the highest value."""
    times = [at for line in lines for at, _ in line.points]
    values = [value for line in lines for _, value in line.points if value is not None]
    if len(set(times)) < 2 or not values:
        return Markup('<p class="muted">No samples yet.</p>')
    first, last, top = min(times), max(times), max(values) or 1.0
    names = ", ".join(line.name for line in lines if line.name)
    label = f"{title}: {names}" if names else title
    label += f", up to {FORMATS[form](max(values))}"
    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            _WIDTH, _HEIGHT, label
        ),
        *_frame(first, last, FORMATS[form](top)),
    ]
    for number, line in enumerate(lines):
        points = _thinned(line.points)
        for run in _runs(points):
            parts.append(_path(run, number, first, last, top))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def _frame(first: float, last: float, highest: str) -> Iterator[Markup]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for share in (0.0, 0.5, 1.0):
        y = _TOP + (bottom - _TOP) * share
        yield Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
            _LEFT, right, y, y
        )
    yield Markup('<text class="scale" x="{}" y="{}">{}</text>').format(_LEFT, _TOP - 5, highest)
    begin, end = (datetime.fromtimestamp(at, UTC).strftime("%H:%M") for at in (first, last))
    yield Markup('<text class="scale" x="{}" y="{}">{}</text>').format(_LEFT, _HEIGHT - 4, begin)
    yield Markup('<text class="scale end" x="{}" y="{}">{} UTC</text>').format(
        right, _HEIGHT - 4, end
    )


def _path(
    run: Sequence[tuple[float, float]], number: int, first: float, last: float, top: float
) -> Markup:
    """A line without a gap, with a light area under the first one."""
    bottom = _HEIGHT - _BOTTOM
    scale = (_WIDTH - _LEFT - _RIGHT) / (last - first)
    places = [
        (_LEFT + (at - first) * scale, bottom - (bottom - _TOP) * value / top) for at, value in run
    ]
    if len(places) == 1:
        x, y = places[0]
        return Markup('<circle class="line-{}" cx="{:.1f}" cy="{:.1f}" r="1.5"/>').format(
            number, x, y
        )
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    line = Markup('<path class="line line-{}" d="{}"/>').format(number, path)
    if number:
        return line
    area = f"{path}L{places[-1][0]:.1f} {bottom}L{places[0][0]:.1f} {bottom}Z"
    return Markup('<path class="area" d="{}"/>').format(area) + line


def _runs(points: Points) -> Iterator[list[tuple[float, float]]]:
    """The stretches of points without an unknown value."""
    run: list[tuple[float, float]] = []
    for at, value in points:
        if value is not None:
            run.append((at, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _thinned(points: Points) -> Points:
    """At most as many points as a chart can show: the highest of each group."""
    if len(points) <= _MAX_POINTS:
        return points
    size = -(-len(points) // _MAX_POINTS)
    groups = (points[start : start + size] for start in range(0, len(points), size))
    return [
        max(group, key=lambda point: -1.0 if point[1] is None else point[1]) for group in groups
    ]


def table_of(lines: Sequence[Line], form: str) -> list[list[str]]:
    """The rows of the table beside a chart: the time, then a value per line."""
    columns = [dict(line.points) for line in lines]
    times = sorted({at for column in columns for at in column})
    chosen = times[:: max(-(-len(times) // _TABLE_ROWS), 1)]
    if times and chosen[-1] != times[-1]:
        chosen.append(times[-1])
    return [
        [
            datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S"),
            *(_text(column.get(at), form) for column in columns),
        ]
        for at in reversed(chosen)
    ]


def _text(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else FORMATS[form](value)
