"""The metrics of Creek's producer, under Creek's own names, for its dashboards.

All of them follow from `SystemFigures`. They are reported while a pipeline has the shape `creek`.
Creek counts per table and operation. Tailrace counts events per pipeline, and rows of snapshots per
table: those labels are empty where the figure has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from tailrace.observe.figure import Figure, Figures, LsnText, gauge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.observe.figures import SystemFigures

SHAPE = "creek"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreekFigures(Figures):
    """The producer as a whole."""

    lsn: Annotated[
        LsnText | None, Figure("WAL position at which the log ends.", gauge("creek_producer_lsn"))
    ]
    behind_bytes: Annotated[
        int | None,
        Figure("WAL that is not acknowledged yet.", gauge("creek_producer_pg_behind_bytes")),
    ]
    behind_ms: Annotated[
        float | None,
        Figure(
            "Milliseconds from commit to acknowledgement by NATS, median of the last micro-batch.",
            gauge("creek_producer_pg_behind_time"),
        ),
    ]
    tables: Annotated[
        int | None, Figure("Tables of the publication.", gauge("creek_producer_wal_subscriptions"))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreekReads(Figures):
    """What was read from PostgreSQL and published, per kind of stream."""

    LABELS: ClassVar = {
        "creek_stream_type": "stream",
        "creek_producer_pg_op": "op",
        "creek_pg_source": "source",
    }

    stream: Annotated[str, Figure("wal or snap.")]
    op: Annotated[str, Figure("r for rows of snapshots; empty for all changes together.")] = ""
    source: Annotated[str, Figure("Table of a snapshot; empty for all changes together.")] = ""
    # A gauge: Prometheus's client adds _total to the names of counters, and Creek's has none.
    count: Annotated[int, Figure("Messages published.", gauge("creek_producer_pg_reads"))] = 0


def creek_figures(system: SystemFigures) -> Iterator[CreekFigures]:
    """The figures of a producer; none if no pipeline has the shape."""
    pipelines = [each for each in system.pipelines if each.shape == SHAPE]
    if pipelines:
        behind_ms = [each.latency_ms_p50 for each in pipelines if each.latency_ms_p50 is not None]
        yield CreekFigures(
            lsn=system.log.end_lsn,
            behind_bytes=system.slot.lag_bytes,
            behind_ms=max(behind_ms, default=None),
            tables=system.slot.tables,
        )


def creek_reads(system: SystemFigures) -> Iterator[CreekReads]:
    """The counts of a producer; none if no pipeline has the shape."""
    pipelines = [each for each in system.pipelines if each.shape == SHAPE]
    if pipelines:
        yield CreekReads(stream="wal", count=sum(each.events for each in pipelines))
    for snapshot in system.snapshots:
        if snapshot.format == SHAPE:
            yield CreekReads(stream="snap", op="r", source=snapshot.table, count=snapshot.rows)
