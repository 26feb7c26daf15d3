"""Figures of a running system, and the forms in which they leave it: Prometheus, and a log line.

`Figures` is one look at everything. A `Collector` asks for a new one at every scrape, so no metric
is kept here and nothing is global. The `bridge_*` names and the METRICS line are those that users
of the PostgreSQL to NATS bridge know; `tailrace_*` tell each process and pipeline apart. What is
not known is left out of a scrape, never shown as zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector as Base

from tailrace.position import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

Family = type[CounterMetricFamily] | type[GaugeMetricFamily]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures:
    """One process. `state` is a word for people, or the code it ended with."""

    name: str
    state: str
    up: bool
    worker: bool = True
    pid: int | None = None
    restarts: int = 0
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFigures:
    """What capture has done since its process began."""

    connected: bool = False
    messages: int = 0
    changes: int = 0
    transactions: int = 0
    bytes: int = 0
    reconnects: int = 0
    acknowledged: Lsn = Lsn(0)  # noqa: RUF009 - an int, and as immutable


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFigures:
    """One pipeline, as the pipelines' process tells it."""

    name: str
    state: str
    running: bool
    code: str = ""
    message: str = ""
    position: str = ""
    lag_bytes: int | None = None
    events: int = 0
    bytes: int = 0
    duplicates: int = 0
    batches: int = 0
    restarts: int = 0
    reconnects: int = 0
    events_per_s: float | None = None
    batch_ms: float | None = None
    latency_ms_p50: float | None = None
    latency_ms_p99: float | None = None
    last_committed_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFigures:
    """A snapshot that was asked for. `eta_s` is a guess from how far it got in how long."""

    id: str
    table: str
    state: str
    rows: int = 0
    bytes: int = 0
    chunks: int = 0
    share: float = 0.0
    seconds: float = 0.0
    error: str = ""

    @property
    def rows_per_s(self) -> float | None:
        """How quick it is, or was."""
        return self.rows / self.seconds if self.seconds else None

    @property
    def eta_s(self) -> float | None:
        """How much longer it may take."""
        if self.state != "running" or not self.share:
            return None
        return self.seconds * (1 - self.share) / self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillFigures(SnapshotFigures):
    """A backfill that was asked for. `chunks` stays 0; `rows_expected` is PostgreSQL's estimate."""

    pipeline: str
    rows_expected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFigures:
    """A change of a table that produced no row events, and what is done about it.

    `pipelines` are those it matters to, with their policies; `waiting` those that nothing was done
    for yet.
    """

    kind: str
    table: str
    subject: str
    detail: str
    hint: str
    lsn: str
    found_at: str
    pipelines: Mapping[str, str]
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCount:
    """How many findings of a kind a pipeline has had, ever."""

    pipeline: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFigures:
    """The slot as PostgreSQL last told. `kept` is WAL it may not remove, `lag` what is unread."""

    active: bool = False
    kept_wal_bytes: int | None = None
    lag_bytes: int | None = None
    checked_at: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigures:
    """The log on disk; `error` instead when there is none or it cannot be read."""

    end: str = ""
    end_lsn: Lsn | None = None
    earliest: str = ""
    bytes: int | None = None
    segments: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One look at everything."""

    version: str
    uptime_s: float
    processes: tuple[ProcessFigures, ...] = ()
    capture: CaptureFigures = CaptureFigures()
    pipelines: tuple[PipelineFigures, ...] = ()
    snapshots: tuple[SnapshotFigures, ...] = ()
    backfills: tuple[BackfillFigures, ...] = ()
    findings: tuple[FindingFigures, ...] = ()
    finding_counts: tuple[FindingCount, ...] = ()
    slot: SlotFigures = SlotFigures()
    log: LogFigures = LogFigures()

    @property
    def events(self) -> int:
        """Events that sinks have confirmed."""
        return sum(pipeline.events for pipeline in self.pipelines)

    @property
    def sink_reconnects(self) -> int:
        """How often pipelines lost their sink and came back."""
        return sum(pipeline.reconnects for pipeline in self.pipelines)

    @property
    def processing_us(self) -> int:
        """How long the last micro-batch took; the slowest pipeline's."""
        return round(max((p.batch_ms or 0 for p in self.pipelines), default=0) * 1000)


def metrics_line(figures: Figures) -> str:
    """The METRICS line, as parsers of the bridge's log expect it.

    >>> metrics_line(Figures(version="1", uptime_s=15.3))
    'METRICS uptime=15 wal_messages=0 cdc_events=0 lsn=0/0 connected=0 reconnects=0 \
nats_reconnects=0 lag_bytes=0 slot_active=0'
    """
    capture, slot = figures.capture, figures.slot
    fields = {
        "uptime": int(figures.uptime_s),
        "wal_messages": capture.messages,
        "cdc_events": figures.events,
        "lsn": str(capture.acknowledged).lower(),
        "connected": int(capture.connected),
        "reconnects": capture.reconnects,
        "nats_reconnects": figures.sink_reconnects,
        "lag_bytes": slot.kept_wal_bytes or 0,
        "slot_active": int(slot.active),
    }
    return "METRICS " + " ".join(f"{key}={value}" for key, value in fields.items())


class Collector(Base):
    """Makes Prometheus's metrics of a fresh look at every scrape."""

    def __init__(self, look: Callable[[], Figures]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        figures = self._look()
        yield from _bridge(figures)
        yield from _system(figures)
        yield from _processes(figures.processes)
        yield from _pipelines(figures.pipelines)
        yield from _snapshots(figures.snapshots)
        yield from _backfills(figures.backfills)
        yield from _findings(figures.finding_counts)


def exposition(look: Callable[[], Figures], accept: str = "") -> tuple[bytes, str]:
    """The metrics in the form a scraper accepts, and its content type."""
    return encoded(Collector(look), accept)


def encoded(collector: Base, accept: str = "") -> tuple[bytes, str]:
    """The same for any collector."""
    # Without auto_describe: it would ask for the metrics' names with a look of its own.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


def _bridge(figures: Figures) -> Iterator[Metric]:
    capture, slot = figures.capture, figures.slot
    yield _gauge("bridge_uptime_seconds", "Seconds since the start.", int(figures.uptime_s))
    yield _counter(
        "bridge_wal_messages_received",
        "Messages of the replication stream made durable in the log.",
        capture.messages,
    )
    yield _counter("bridge_cdc_events_published", "Events confirmed by JetStream.", figures.events)
    yield _gauge(
        "bridge_last_ack_lsn", "WAL position last acknowledged to PostgreSQL.", capture.acknowledged
    )
    yield _gauge("bridge_connected", "1 while changes are streamed.", int(capture.connected))
    yield _counter(
        "bridge_reconnects", "Times the stream from PostgreSQL was resumed.", capture.reconnects
    )
    yield _counter(
        "bridge_nats_reconnects", "Times the line to NATS was resumed.", figures.sink_reconnects
    )
    yield _gauge(
        "bridge_last_processing_time_us",
        "Microseconds the last micro-batch took, from the log to JetStream's confirmation.",
        figures.processing_us,
    )
    yield _gauge("bridge_slot_active", "1 while the slot is being read.", int(slot.active))
    yield from _known(
        "bridge_wal_lag_bytes", "Bytes of WAL that PostgreSQL keeps for the slot.",
        slot.kept_wal_bytes,
    )  # fmt: skip


def _system(figures: Figures) -> Iterator[Metric]:
    capture, slot, log = figures.capture, figures.slot, figures.log
    info = GaugeMetricFamily("tailrace_info", "The release at work.", labels=["version"])
    info.add_metric([figures.version], 1)
    yield info
    yield _counter("tailrace_captured_changes", "Row changes captured.", capture.changes)
    yield _counter("tailrace_captured_transactions", "Transactions.", capture.transactions)
    yield _counter("tailrace_captured_bytes", "Bytes of changes captured.", capture.bytes)
    yield from _known(
        "tailrace_slot_kept_wal_bytes", "WAL that PostgreSQL keeps for the slot.",
        slot.kept_wal_bytes,
    )  # fmt: skip
    yield from _known(
        "tailrace_slot_lag_bytes", "WAL between the server's end and what capture has confirmed.",
        slot.lag_bytes,
    )  # fmt: skip
    yield from _known("tailrace_log_end_lsn", "WAL position the log ends at.", log.end_lsn)
    yield from _known("tailrace_log_bytes", "Size of the log on disk.", log.bytes)
    yield from _known("tailrace_log_segments", "Segments of the log.", log.segments)


def _processes(processes: tuple[ProcessFigures, ...]) -> Iterator[Metric]:
    up = GaugeMetricFamily("tailrace_process_up", "1 while it runs.", labels=["process"])
    state = GaugeMetricFamily(
        "tailrace_process_state", "1 for the state it is in.", labels=["process", "state"]
    )
    restarts = CounterMetricFamily(
        "tailrace_process_restarts", "Times it was started again.", labels=["process"]
    )
    for each in processes:
        up.add_metric([each.name], int(each.up))
        state.add_metric([each.name, each.state], 1)
        restarts.add_metric([each.name], each.restarts)
    yield up
    yield state
    yield restarts


_PIPELINE: tuple[tuple[Family, str, str, Callable[[PipelineFigures], float | None]], ...] = (
    (GaugeMetricFamily, "pipeline_up", "1 while it delivers.", lambda p: int(p.running)),
    (CounterMetricFamily, "events", "Events its sink has confirmed.", lambda p: p.events),
    (CounterMetricFamily, "bytes", "Bytes its sink has confirmed.", lambda p: p.bytes),
    (CounterMetricFamily, "duplicates", "Events its sink had already.", lambda p: p.duplicates),
    (CounterMetricFamily, "batches", "Micro-batches.", lambda p: p.batches),
    (CounterMetricFamily, "restarts", "Times its query was started again.", lambda p: p.restarts),
    (GaugeMetricFamily, "lag_bytes", "WAL from its position to the log's end.",
     lambda p: p.lag_bytes),
    (GaugeMetricFamily, "events_per_second", "Events a second of late.", lambda p: p.events_per_s),
    (GaugeMetricFamily, "batch_seconds", "Time the last micro-batch took.",
     lambda p: _seconds(p.batch_ms)),
)  # fmt: skip

# Of the last one: ids would be labels without end.
_SNAPSHOT: tuple[tuple[str, str, Callable[[SnapshotFigures], float]], ...] = (
    ("running", "1 while it is at work.", lambda s: s.state == "running"),
    ("failed", "1 if it failed.", lambda s: s.state == "failed"),
    ("share", "How much of the table is done, from 0 to 1.", lambda s: s.share),
    ("rows", "Rows published.", lambda s: s.rows),
    ("bytes", "Bytes of them, before compression.", lambda s: s.bytes),
    ("seconds", "How long it has taken.", lambda s: s.seconds),
)


def _pipelines(pipelines: tuple[PipelineFigures, ...]) -> Iterator[Metric]:
    for kind, name, text, value in _PIPELINE:
        family = kind(f"tailrace_{name}", text, labels=["pipeline"])
        for each in pipelines:
            found = value(each)
            if found is not None:
                family.add_metric([each.name], found)
        yield family
    latency = GaugeMetricFamily(
        "tailrace_latency_seconds",
        "Time from a commit to its sink's confirmation, of late.",
        labels=["pipeline", "quantile"],
    )
    for each in pipelines:
        for quantile, found in (("0.5", each.latency_ms_p50), ("0.99", each.latency_ms_p99)):
            if found is not None:
                latency.add_metric([each.name, quantile], found / 1000)
    yield latency


def _snapshots(snapshots: tuple[SnapshotFigures, ...]) -> Iterator[Metric]:
    last = {each.table: each for each in snapshots}
    for name, text, value in _SNAPSHOT:
        family = GaugeMetricFamily(f"tailrace_snapshot_{name}", text, labels=["table"])
        for table, each in last.items():
            family.add_metric([table], value(each))
        yield family


def _backfills(backfills: tuple[BackfillFigures, ...]) -> Iterator[Metric]:
    last = {(each.pipeline, each.table): each for each in backfills}
    for name, text, value in _SNAPSHOT:
        family = GaugeMetricFamily(f"tailrace_backfill_{name}", text, labels=["pipeline", "table"])
        for labels, each in last.items():
            family.add_metric(labels, value(each))
        yield family


def _findings(counts: tuple[FindingCount, ...]) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "tailrace_schema_findings",
        "Changes of tables that produced no row events.",
        labels=["pipeline", "kind"],
    )
    for each in counts:
        family.add_metric([each.pipeline, each.kind], each.count)
    yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _known(name: str, text: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield _gauge(name, text, value)


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000
