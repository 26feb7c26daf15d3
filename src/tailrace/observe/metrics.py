"""Figures as Prometheus metrics: names, types and help come from the figures' fields.

A `Collector` reads the figures once per scrape, so this module stores no metric and has no
global state. An unknown figure (None) has no sample, never a zero.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector as Base

from tailrace.observe.bridge import BridgeFigures, bridge_figures
from tailrace.observe.copies import BackfillFigures, SnapshotFigures
from tailrace.observe.creek import CreekFigures, CreekReads, creek_figures, creek_reads
from tailrace.observe.figure import figures_of
from tailrace.observe.figures import (
    CaptureFigures,
    PipelineFigures,
    ProcessFigures,
    RefusedFigures,
    SystemFigures,
)
from tailrace.observe.health import ChannelFigures, CheckFigures, WatchFigures
from tailrace.observe.kept import LogFigures, PinFigures, SlotFigures
from tailrace.observe.replica import FollowerFigures, FollowingFigures, LeaderFigures
from tailrace.observe.schema_changes import SchemaChangeCount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace.observe.figure import Figure, Figures, Metric

    Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_FAMILIES: dict[str, type[Family]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Collector(Base):
    """Reads a system and yields its metrics, once per scrape."""

    def __init__(self, read: Callable[[], SystemFigures]) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        """All metrics."""
        system = self._read()
        yield from families(BridgeFigures, [bridge_figures(system)])
        yield from families(SystemFigures, [system])
        yield from families(CaptureFigures, [system.capture])
        yield from families(SlotFigures, [system.slot])
        yield from families(LogFigures, [system.log])
        yield from families(ProcessFigures, system.processes)
        yield from families(PipelineFigures, system.pipelines)
        refused = [each for pipeline in system.pipelines for each in pipeline.refused]
        yield from families(RefusedFigures, refused)
        yield from families(SnapshotFigures, system.snapshots)
        yield from families(BackfillFigures, system.backfills)
        yield from families(SchemaChangeCount, system.schema_change_counts)
        yield from families(PinFigures, system.pins)
        if system.leading is not None:
            yield from families(LeaderFigures, [system.leading])
            yield from families(FollowerFigures, system.leading.followers)
        if system.following is not None:
            yield from families(FollowingFigures, [system.following])
        if system.watch is not None:
            yield from families(WatchFigures, [system.watch])
            yield from families(CheckFigures, system.watch.checks)
            yield from families(ChannelFigures, system.watch.channels)
        for kind, items in ((CreekFigures, creek_figures), (CreekReads, creek_reads)):
            if found := [*items(system)]:
                yield from families(kind, found)


def exposition(read: Callable[[], SystemFigures], accept: str = "") -> tuple[bytes, str]:
    """The metrics of a system in the format that a scraper accepts, and its content type."""
    return encoded(Collector(read), accept)


def encoded(collector: Base, accept: str = "") -> tuple[bytes, str]:
    """The metrics of a collector in the format that a scraper accepts, and its content type."""
    # auto_describe would read all figures once more, to learn the names.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


def families(kind: type[Figures], items: Sequence[Figures]) -> Iterator[Family]:
    """The metrics of one class of figures, with a sample per item and metric.

    Items with equal labels are the same series: the last one counts.
    """
    series = {tuple(_labels(item).values()): item for item in items}
    by_name: dict[str, Family] = {}
    for name, figure in figures_of(kind).items():
        for metric in figure.metrics:
            family = by_name.setdefault(metric.name, _family(kind, figure, metric))
            for labels, item in series.items():
                _add_sample(family, metric, labels, getattr(item, name))
    yield from by_name.values()


def _labels(item: Figures) -> dict[str, str]:
    return {label: str(getattr(item, name)) for label, name in item.LABELS.items()}


def _family(kind: type[Figures], figure: Figure, metric: Metric) -> Family:
    more = [metric.value_label] if metric.value_label else []
    labels = [*kind.LABELS, *metric.labels, *more]
    return _FAMILIES[metric.kind](metric.name, metric.help or figure.description, labels=labels)


def _add_sample(family: Family, metric: Metric, labels: Sequence[str], value: Any) -> None:
    """Add a sample. How a value becomes a number:

    | value                    | sample                                       |
    |--------------------------|----------------------------------------------|
    | None                     | no sample                                    |
    | any, with `value_label`  | 1, the value is a label                      |
    | any, with `when`         | 1 if it is that value, otherwise 0           |
    | a time                   | seconds since 1970                           |
    | a histogram              | a sample per bucket, their sum and count     |
    | a number, an LSN, a bool | the number, by `divide_by`                   |
    """
    if value is None:
        return
    fixed = [*labels, *metric.labels.values()]
    if isinstance(family, HistogramMetricFamily):
        family.add_metric(fixed, [*value.buckets()], value.seconds)
    elif metric.value_label:
        family.add_metric([*fixed, str(value)], 1)
    elif metric.when is not None:
        family.add_metric(fixed, int(value == metric.when))
    elif isinstance(value, datetime):
        family.add_metric(fixed, value.timestamp())
    else:
        family.add_metric(fixed, value / metric.divide_by)
