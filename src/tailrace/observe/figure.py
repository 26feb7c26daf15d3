"""How a status figure is declared, counted and shown as JSON.

A class of figures is a frozen dataclass whose fields carry a `Figure`: a description and the
Prometheus metrics of the field. `tailrace.observe.figures` declares them all, and
`tailrace.observe.metrics` writes Prometheus's text.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - get_type_hints reads the annotations
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeVar,
    get_type_hints,
)

import orjson
from pydantic import PlainSerializer, PlainValidator

from tailrace.position import Lsn

if TYPE_CHECKING:
    from tailrace.observe.histogram import Histogram


def _read_lsn(value: object) -> Lsn:
    return value if isinstance(value, Lsn) else Lsn.parse(str(value))


LsnText = Annotated[Lsn, PlainValidator(_read_lsn), PlainSerializer(str)]
"""An LSN that is written as text, such as 16/B374D848."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A Prometheus metric of a figure."""

    name: str
    """Without `_total`, which Prometheus's client adds to counters."""
    kind: Literal["counter", "gauge", "histogram"]
    help: str = ""
    """Without it, the figure's description."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Fixed labels, beside those of the component."""
    divide_by: float = 1.0
    """1000 turns milliseconds into seconds."""
    when: str | None = None
    """The sample is 1 while the figure has this value, otherwise 0."""
    value_label: str = ""
    """The sample is 1, and this label has the figure as its value."""


def counter(name: str) -> Metric:
    """A metric that only grows until its process restarts."""
    return Metric(name=name, kind="counter")


def gauge(name: str, **more: Any) -> Metric:
    """A metric that goes up and down."""
    return Metric(name=name, kind="gauge", **more)


def histogram(name: str) -> Metric:
    """A metric of many latencies. Its figure is a `Histogram`."""
    return Metric(name=name, kind="histogram")


class Figure:
    """The description of a field, and its metrics."""

    def __init__(self, description: str, *metrics: Metric) -> None:
        self.description = description
        self.metrics = metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Base of all figures. `LABELS` maps a Prometheus label to the field that holds its value."""

    LABELS: ClassVar[Mapping[str, str]] = {}
    SHOWN_AT: ClassVar[str] = "/status"
    """The document that has the figures that are no metrics."""


F = TypeVar("F", bound=Figures)


class Recorder(Generic[F]):
    """The present figures of a component, for one thread that counts and others that read.

    The figures are replaced as a whole, so that a reader never sees half of an update.

    >>> from tailrace.observe.figures import CaptureFigures
    >>> recorder = Recorder(CaptureFigures())
    >>> recorder.add(changes=2)
    >>> recorder.add(changes=1, transactions=1)
    >>> recorder.figures.changes, recorder.figures.transactions
    (3, 1)
    """

    def __init__(self, figures: F) -> None:
        self.figures = figures

    def set(self, **values: Any) -> None:
        """Replace figures."""
        self.figures = replace(self.figures, **values)

    def add(self, **counts: float | Histogram) -> None:
        """Add to figures."""
        self.set(**{name: getattr(self.figures, name) + count for name, count in counts.items()})


_described: dict[type[Figures], Mapping[str, Figure]] = {}


def figures_of(kind: type[Figures]) -> Mapping[str, Figure]:
    """The described fields of a class of figures, by name, with their metrics."""
    if kind not in _described:
        _described[kind] = _describe(kind)
    return _described[kind]


def _describe(kind: type[Figures]) -> Mapping[str, Figure]:
    hints = get_type_hints(kind, include_extras=True)
    own: Mapping[str, tuple[Metric, ...]] = getattr(kind, "METRICS", {})
    described = {}
    for each in fields(kind):
        metadata = getattr(hints[each.name], "__metadata__", ())
        figure = next((part for part in metadata if isinstance(part, Figure)), None)
        if figure is not None:
            described[each.name] = Figure(
                figure.description, *figure.metrics, *own.get(each.name, ())
            )
    return described


def document(figures: Figures) -> dict[str, Any]:
    """Figures as the object that `/status` shows: every field, then every public property."""
    shown = {each.name: _shown(getattr(figures, each.name)) for each in fields(figures)}
    return shown | {name: getattr(figures, name) for name in _properties(type(figures))}


def as_json(content: object) -> bytes:
    """A document as a line of JSON. LSNs and times become text."""
    # With the option, LSNs (a subclass of int) reach `default`.
    return orjson.dumps(content, default=str, option=orjson.OPT_PASSTHROUGH_SUBCLASS) + b"\n"


def _shown(value: object) -> object:
    if isinstance(value, Figures):
        return document(value)
    if isinstance(value, tuple) and any(map(is_dataclass, value)):
        return [_shown(each) for each in value]
    return value


def _properties(kind: type[Figures]) -> tuple[str, ...]:
    names = (name for base in reversed(kind.__mro__) for name in vars(base))
    return tuple(
        name
        for name in dict.fromkeys(names)
        if isinstance(getattr(kind, name), property) and not name.startswith("_")
    )
