"""Numbers as people read them, each with the name of its metric."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup

from tailrace.observe import broker, replica
from tailrace.observe import figures as declared
from tailrace.observe.figure import Figures, figures_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.observe.figure import Metric

UNKNOWN = "\N{EN DASH}"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEPS_S = ((86_400, "d"), (3600, "h"), (60, "min"))
_KINDS: dict[str, type[Figures]] = {
    name: kind
    for module in (declared, replica, broker)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Figures)
}


def count(value: float) -> str:
    """A number of things.

    >>> count(1234567), count(3)
    ('1,234,567', '3')
    """
    return f"{value:,.0f}"


def size(value: float) -> str:
    """A number of bytes.

    >>> size(0), size(1536), size(10 << 30)
    ('0 B', '1.5 KiB', '10 GiB')
    """
    number, unit = float(value), 0
    while abs(number) >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    digits = 1 if unit and abs(number) < 10 else 0
    return f"{number:,.{digits}f} {_UNITS[unit]}"


def seconds(value: float) -> str:
    """A duration.

    >>> seconds(0), seconds(0.25), seconds(75), seconds(90_000)
    ('0 s', '250 ms', '1 min 15 s', '1 d 1 h')
    """
    if value < 1:
        return f"{value * 1000:.0f} ms" if value else "0 s"
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    for place, (step, unit) in enumerate(_STEPS_S):
        if value >= step:
            smaller, name = _STEPS_S[place + 1] if place < len(_STEPS_S) - 1 else (1, "s")
            rest = int(value % step // smaller)
            return f"{int(value // step)} {unit}" + (f" {rest} {name}" if rest else "")
    raise AssertionError


def milliseconds(value: float) -> str:
    """A duration in milliseconds."""
    return seconds(value / 1000)


def per_second(value: float) -> str:
    """A rate.

    >>> per_second(0), per_second(0.25), per_second(12345)
    ('0/s', '0.2/s', '12,345/s')
    """
    return f"{value:,.0f}/s" if not value or value >= 10 else f"{value:,.1f}/s"


def share(value: float) -> str:
    """A part of a whole."""
    return f"{value * 100:.0f} %"


def moment(value: object) -> str:
    """A time, in UTC, without fractions of a second."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return str(value)
    if isinstance(value, int | float):
        value = datetime.fromtimestamp(value, UTC)
    if not isinstance(value, datetime):
        return UNKNOWN
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


FORMATS: dict[str, Callable[[float], str]] = {
    "count": count,
    "size": size,
    "seconds": seconds,
    "milliseconds": milliseconds,
    "rate": per_second,
    "share": share,
}


class Meter:
    """Shows figures, and remembers which metrics a page has used.

    >>> meter = Meter()
    >>> str(meter("PipelineFigures.lag_bytes", 2048, "size"))[-14:]
    '2.0 KiB</data>'
    >>> meter.used
    {'tailrace_lag_bytes': "WAL from the pipeline's position to the log's end."}
    """

    def __init__(self) -> None:
        self.used: dict[str, str] = {}

    def __call__(self, figure: str, value: float | None, form: str = "count") -> Markup:
        """A figure, such as `PipelineFigures.lag_bytes`, with its metric."""
        metric, description = _described(figure, form)
        self.used[metric] = description
        text = UNKNOWN if value is None else FORMATS[form](value)
        return Markup('<data value="{}" data-metric="{}" title="{}">{}</data>').format(
            "" if value is None else value, metric, metric, text
        )


@cache
def _described(figure: str, form: str) -> tuple[str, str]:
    """The metric of a figure, and its description."""
    kind, _, field = figure.partition(".")
    described = figures_of(_KINDS[kind])[field]
    if not described.metrics:
        return f"{_KINDS[kind].SHOWN_AT}: {field}", described.description
    first = described.metrics[0]
    name = _name(first)
    is_rate = form == "rate" and first.kind == "counter"
    return f"rate({name})" if is_rate else name, described.description


def _name(metric: Metric) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in metric.labels.items())
    suffix = "_total" if metric.kind == "counter" else ""
    return f"{metric.name}{suffix}" + (f"{{{labels}}}" if labels else "")
