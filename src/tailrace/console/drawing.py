"""The path of a change as a drawing: source → capture → log → each pipeline → its sink.

Two drawings of the same boxes, a wide and a tall one; the stylesheet shows the one that fits. The
page has the same figures in tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Tone = Literal["good", "warning", "error", "quiet"]
_BOX_WIDTH, _BOX_HEIGHT, _GAP, _ROW_GAP = 168, 66, 44, 14
_MAX_CHARACTERS = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box: a title, two lines of figures, a tone, and the page that it leads to."""

    title: str
    lines: tuple[str, ...]
    tone: Tone = "good"
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A pipeline and its sink. `flows`: whether changes pass at present."""

    pipeline: Box
    sink: Box
    flows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    box: Box
    x: float
    y: float


def wide(trunk: Sequence[Box], branches: Sequence[Branch], *, flows: bool) -> Markup:
    """The drawing from left to right."""
    rows = max(len(branches), 1)
    height = rows * (_BOX_HEIGHT + _ROW_GAP) - _ROW_GAP + 8
    step = _BOX_WIDTH + _GAP
    columns = len(trunk) + (2 if branches else 0)
    middle = height / 2 - _BOX_HEIGHT / 2
    placed = [_Placed(box=box, x=2 + n * step, y=middle) for n, box in enumerate(trunk)]
    lines = [_across(a, b, flows) for a, b in pairwise(placed)]
    for row, branch in enumerate(branches):
        y = 4 + row * (_BOX_HEIGHT + _ROW_GAP)
        x = 2 + len(trunk) * step
        pipeline = _Placed(box=branch.pipeline, x=x, y=y)
        sink = _Placed(box=branch.sink, x=x + step, y=y)
        lines += [_across(placed[len(trunk) - 1], pipeline, branch.flows)]
        lines += [_across(pipeline, sink, branch.flows)]
        placed += [pipeline, sink]
    return _svg("wide", columns * step - _GAP + 4, height, lines, placed)


def tall(trunk: Sequence[Box], branches: Sequence[Branch], *, flows: bool) -> Markup:
    """The drawing from top to bottom, for narrow windows: sinks stand beside their pipelines."""
    step, centre = _BOX_HEIGHT + 26, (_BOX_WIDTH * 2 + 28) / 2 - _BOX_WIDTH / 2
    placed = [_Placed(box=box, x=2 + centre, y=4 + n * step) for n, box in enumerate(trunk)]
    lines = [_down(a, b, flows) for a, b in pairwise(placed)]
    top = 4 + len(trunk) * step
    for row, branch in enumerate(branches):
        y = top + row * (_BOX_HEIGHT + _ROW_GAP)
        pipeline = _Placed(box=branch.pipeline, x=2, y=y)
        sink = _Placed(box=branch.sink, x=2 + _BOX_WIDTH + 28, y=y)
        if not row:
            lines += [_down(placed[len(trunk) - 1], pipeline, branch.flows)]
        lines += [_across(pipeline, sink, branch.flows)]
        placed += [pipeline, sink]
    height = top + len(branches) * (_BOX_HEIGHT + _ROW_GAP)
    return _svg("tall", _BOX_WIDTH * 2 + 32, height, lines, placed)


def _svg(
    kind: str, width: float, height: float, lines: Sequence[Markup], placed: Sequence[_Placed]
) -> Markup:
    head = Markup(
        '<svg class="path {}" viewBox="0 0 {:.0f} {:.0f}" width="{:.0f}" height="{:.0f}" '
        'role="group" aria-label="The path of a change">'
    ).format(kind, width, height, width, height)
    boxes = [part for each in placed for part in _box(each)]
    return head + Markup("").join(lines) + Markup("").join(boxes) + Markup("</svg>")


def _box(placed: _Placed) -> Iterator[Markup]:
    box, x, y = placed.box, placed.x, placed.y
    if box.link:
        yield Markup('<a href="{}">').format(box.link)
    yield Markup(
        '<g class="box {}"><title>{}</title>'
        '<rect x="{:.0f}" y="{:.0f}" width="{}" height="{}" rx="9"/>'
        '<circle cx="{:.0f}" cy="{:.0f}" r="4"/>'
        '<text class="name" x="{:.0f}" y="{:.0f}">{}</text>'
    ).format(
        box.tone, ", ".join((box.title, *box.lines)), x, y, _BOX_WIDTH, _BOX_HEIGHT,
        x + 14, y + 17, x + 25, y + 21, _short(box.title),
    )  # fmt: skip
    for number, line in enumerate(box.lines[:2]):
        yield Markup('<text class="fact" x="{:.0f}" y="{:.0f}">{}</text>').format(
            x + 12, y + 40 + 16 * number, _short(line, 27)
        )
    yield Markup("</g>")
    if box.link:
        yield Markup("</a>")


def _across(a: _Placed, b: _Placed, flows: bool) -> Markup:
    x1, y1 = a.x + _BOX_WIDTH, a.y + _BOX_HEIGHT / 2
    x2, y2 = b.x, b.y + _BOX_HEIGHT / 2
    middle = (x1 + x2) / 2
    return _line(
        f"M{x1:.0f} {y1:.0f}C{middle:.0f} {y1:.0f} {middle:.0f} {y2:.0f} {x2:.0f} {y2:.0f}", flows
    )


def _down(a: _Placed, b: _Placed, flows: bool) -> Markup:
    x1, y1 = a.x + _BOX_WIDTH / 2, a.y + _BOX_HEIGHT
    x2, y2 = b.x + _BOX_WIDTH / 2, b.y
    middle = (y1 + y2) / 2
    return _line(
        f"M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}", flows
    )


def _line(path: str, flows: bool) -> Markup:
    return Markup('<path class="flow{}" d="{}"/>').format(" moving" if flows else "", path)


def _short(text: str, limit: int = _MAX_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
