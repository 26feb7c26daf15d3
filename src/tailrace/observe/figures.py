"""Status figures: the numbers and states that a running system reports about itself.

One dataclass per component. The process that counts fills it in; the status file, `/status` and
`/metrics` are derived from its fields, so a new figure is one field here and one line that counts:

    retries: Annotated[int, Figure("Retried batches.", counter("tailrace_retries"))] = 0

`None` means unknown: it is null in JSON and has no sample in `/metrics`, never a zero. Public
properties are shown in JSON as well. This module only declares: `tailrace.observe.metrics` writes
Prometheus's text, and `tailrace.run.status` reads and writes the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, ClassVar

from tailrace.observe.copies import (  # noqa: TC001 - get_type_hints reads the annotations
    BackfillFigures,
    SnapshotFigures,
)
from tailrace.observe.figure import Figure, Figures, LsnText, counter, gauge, histogram
from tailrace.observe.health import WatchFigures  # noqa: TC001 - get_type_hints reads it
from tailrace.observe.histogram import Histogram
from tailrace.observe.kept import (
    LogFigures,
    PinFigures,
    SlotFigures,
)
from tailrace.observe.replica import (  # noqa: TC001 - get_type_hints reads the annotations
    FollowingFigures,
    LeaderFigures,
)
from tailrace.observe.schema_changes import (  # noqa: TC001 - get_type_hints reads the annotations
    SchemaChangeCount,
    SchemaChangeFigures,
)
from tailrace.position import Lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures(Figures):
    """One process of `tailrace run`."""

    LABELS: ClassVar = {"process": "name"}

    name: Annotated[str, Figure("Name of the process.")] = ""
    state: Annotated[
        str,
        Figure(
            "State: a word, or the error code of a final state.",
            gauge(
                "tailrace_process_state",
                help="1 for the present state of the process.",
                value_label="state",
            ),
        ),
    ] = ""
    up: Annotated[bool, Figure("1 while the process runs.", gauge("tailrace_process_up"))] = False
    worker: Annotated[bool, Figure("Whether the process moves data.")] = True
    pid: Annotated[int | None, Figure("Process id.")] = None
    restarts: Annotated[
        int, Figure("Restarts of the process.", counter("tailrace_process_restarts"))
    ] = 0
    cpu_s: Annotated[
        float | None,
        Figure(
            "CPU time of the process and its descendants.",
            counter("tailrace_process_cpu_seconds"),
        ),
    ] = None
    busy: Annotated[
        float | None,
        Figure(
            "CPU time per second, over the last seconds: 1 is a core.",
            gauge("tailrace_process_busy_ratio"),
        ),
    ] = None
    exit_code: Annotated[int | None, Figure("Exit code of the last run of the process.")] = None
    code: Annotated[str, Figure("Error code of a final state.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFigures(Figures):
    """Capture, since its process started."""

    state: Annotated[str, Figure("starting, streaming, reconnecting, stopping, stopped.")] = ""
    connected: Annotated[
        bool, Figure("1 while capture streams changes.", gauge("bridge_connected"))
    ] = False
    messages: Annotated[
        int,
        Figure(
            "Replication messages appended to the log.",
            counter("bridge_wal_messages_received"),
            counter("tailrace_captured_messages"),
        ),
    ] = 0
    changes: Annotated[
        int, Figure("Row changes captured.", counter("tailrace_captured_changes"))
    ] = 0
    transactions: Annotated[
        int, Figure("Transactions captured.", counter("tailrace_captured_transactions"))
    ] = 0
    bytes: Annotated[
        int, Figure("Bytes of changes captured.", counter("tailrace_captured_bytes"))
    ] = 0
    received_bytes: Annotated[
        int,
        Figure(
            "Bytes received from the walsender, also of what was received again or dropped.",
            counter("tailrace_received_bytes"),
        ),
    ] = 0
    ingestion_latency: Annotated[
        Histogram,
        Figure(
            "Time from a transaction's commit until it is durable in the log.",
            histogram("tailrace_ingestion_latency_seconds"),
        ),
    ] = Histogram()  # noqa: RUF009 - immutable
    entries: Annotated[int, Figure("Log entries written, one per group commit.")] = 0
    sessions: Annotated[int, Figure("Replication sessions opened.")] = 0
    acknowledged: Annotated[
        LsnText,
        Figure("WAL position last acknowledged to PostgreSQL.", gauge("bridge_last_ack_lsn")),
    ] = Lsn(0)  # noqa: RUF009 - an int, and as immutable
    last_committed_at: Annotated[
        datetime | None,
        Figure(
            "Commit time of the last transaction captured.",
            gauge("tailrace_captured_last_commit_timestamp_seconds"),
        ),
    ] = None

    @property
    def reconnects(self) -> int:
        """Replication sessions after the first."""
        return max(self.sessions - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedFigures(Figures):
    """A destination that refuses messages, while its pipeline delivers to the others."""

    LABELS: ClassVar = {"pipeline": "pipeline", "destination": "destination"}

    pipeline: Annotated[str, Figure("Name of the pipeline.")] = ""
    destination: Annotated[str, Figure("The topic.")] = ""
    code: Annotated[
        str,
        Figure(
            "Code of the error.",
            gauge(
                "tailrace_refused_destination",
                help="1 for each destination that refuses messages while others accept them.",
                value_label="code",
            ),
        ),
    ] = ""
    reason: Annotated[str, Figure("Text of the error.")] = ""
    hint: Annotated[str, Figure("What to do about it.")] = ""
    since: Annotated[datetime | None, Figure("When it was first refused.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFigures(Figures):
    """One pipeline, since its process started."""

    LABELS: ClassVar = {"pipeline": "name"}

    name: Annotated[str, Figure("Name of the pipeline.")] = ""
    shape: Annotated[str, Figure("Shape of its messages; empty if it is not in the settings.")] = ""
    state: Annotated[
        str,
        Figure(
            "starting, running, retrying, failed, stopped; down without its process.",
            gauge("tailrace_pipeline_up", help="1 while the pipeline delivers.", when="running"),
        ),
    ] = "starting"
    code: Annotated[str, Figure("Code of the error that stopped delivery.")] = ""
    message: Annotated[str, Figure("Text of the error that stopped delivery.")] = ""
    position: Annotated[str, Figure("Position of the last change delivered.")] = ""
    lag_bytes: Annotated[
        int | None,
        Figure("WAL from the pipeline's position to the log's end.", gauge("tailrace_lag_bytes")),
    ] = None
    lag_s: Annotated[
        float | None,
        Figure(
            "Seconds since the log first contained something that is not delivered.",
            gauge("tailrace_lag_seconds"),
        ),
    ] = None
    events: Annotated[
        int,
        Figure(
            "Events acknowledged by the sink.",
            counter("tailrace_events"),
            counter("tailrace_delivery_successes"),
        ),
    ] = 0
    attempts: Annotated[
        int,
        Figure(
            "Attempts to deliver an event, that the sink acknowledged or did not accept.",
            counter("tailrace_delivery_attempts"),
        ),
    ] = 0
    failures: Annotated[
        int,
        Figure(
            "Attempts after which the sink did not accept the event.",
            counter("tailrace_delivery_failures"),
        ),
    ] = 0
    bytes: Annotated[int, Figure("Bytes acknowledged by the sink.", counter("tailrace_bytes"))] = 0
    duplicates: Annotated[
        int,
        Figure("Events that the sink had stored before.", counter("tailrace_duplicates")),
    ] = 0
    parked: Annotated[
        int,
        Figure("Events parked instead of delivered.", counter("tailrace_parked_events")),
    ] = 0
    parked_messages: Annotated[
        int | None,
        Figure("Messages that are parked now.", gauge("tailrace_parked_messages")),
    ] = None
    parked_bytes: Annotated[
        int | None,
        Figure("Bytes of the messages that are parked now.", gauge("tailrace_parked_bytes")),
    ] = None
    pull_pending: Annotated[
        int | None,
        Figure(
            "Messages that consumers of a sink pull have not acknowledged.",
            gauge("tailrace_pull_pending"),
        ),
    ] = None
    pull_pending_bytes: Annotated[
        int | None,
        Figure("Bytes of these messages.", gauge("tailrace_pull_pending_bytes")),
    ] = None
    pull_out: Annotated[
        int | None,
        Figure("Those of them that consumers have received.", gauge("tailrace_pull_out")),
    ] = None
    pull_exhausted: Annotated[
        int | None,
        Figure(
            "Those of them that were delivered too often.",
            gauge("tailrace_pull_exhausted"),
        ),
    ] = None
    pull_oldest_s: Annotated[
        float | None,
        Figure(
            "Seconds since the oldest of them came; 0 if there is none.",
            gauge("tailrace_pull_oldest_age_seconds"),
        ),
    ] = None
    pull_delivered: Annotated[
        int | None,
        Figure(
            "Deliveries to consumers, repeated ones included.",
            counter("tailrace_pull_delivered"),
        ),
    ] = None
    pull_redelivered: Annotated[
        int | None,
        Figure("Repeated deliveries.", counter("tailrace_pull_redelivered")),
    ] = None
    pull_acknowledged: Annotated[
        int | None,
        Figure("Messages that consumers acknowledged.", counter("tailrace_pull_acknowledged")),
    ] = None
    batches: Annotated[int, Figure("Micro-batches committed.", counter("tailrace_batches"))] = 0
    restarts: Annotated[
        int, Figure("Restarts of the query after an error.", counter("tailrace_restarts"))
    ] = 0
    reconnects: Annotated[int, Figure("Restarts because the sink was unreachable.")] = 0
    spans_lost: Annotated[
        int, Figure("Spans that no collector has.", counter("tailrace_spans_lost"))
    ] = 0
    events_per_s: Annotated[
        float | None,
        Figure("Recent events per second.", gauge("tailrace_events_per_second")),
    ] = None
    open: Annotated[
        bool | None,
        Figure("Whether the present micro-batch is open.", gauge("tailrace_batch_open")),
    ] = None
    batch_ms: Annotated[
        float | None,
        Figure(
            "Duration of the last micro-batch.", gauge("tailrace_batch_seconds", divide_by=1000)
        ),
    ] = None
    latency_ms_p50: Annotated[
        float | None,
        Figure(
            "Time from commit to acknowledgement, last micro-batch.",
            gauge("tailrace_latency_seconds", divide_by=1000, labels={"quantile": "0.5"}),
        ),
    ] = None
    latency_ms_p99: Annotated[
        float | None,
        Figure(
            "Time from commit to acknowledgement, last micro-batch.",
            gauge("tailrace_latency_seconds", divide_by=1000, labels={"quantile": "0.99"}),
        ),
    ] = None
    delivery_latency: Annotated[
        Histogram,
        Figure(
            "Time from a change's commit until the sink has acknowledged it.",
            histogram("tailrace_delivery_latency_seconds"),
        ),
    ] = Histogram()  # noqa: RUF009 - immutable
    internal_latency: Annotated[
        Histogram,
        Figure(
            "Time from when a change is durable in the log until the sink has acknowledged it.",
            histogram("tailrace_internal_latency_seconds"),
        ),
    ] = Histogram()  # noqa: RUF009 - immutable
    last_committed_at: Annotated[
        datetime | None,
        Figure(
            "Commit time of the last transaction delivered.",
            gauge("tailrace_last_commit_timestamp_seconds"),
        ),
    ] = None

    refused: Annotated[
        tuple[RefusedFigures, ...],
        Figure("Destinations that refuse messages, as of the last micro-batch."),
    ] = ()

    @property
    def running(self) -> bool:
        """Whether the pipeline delivers."""
        return self.state == "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFigures(Figures):
    """Everything that a running system reports, at one moment."""

    version: Annotated[
        str,
        Figure(
            "Version of Tailrace.",
            gauge("tailrace_info", help="Always 1.", value_label="version"),
        ),
    ] = ""
    uptime_s: Annotated[float, Figure("Seconds since `tailrace run` started.")] = 0.0
    processes: tuple[ProcessFigures, ...] = ()
    capture: CaptureFigures = CaptureFigures()
    pipelines: tuple[PipelineFigures, ...] = ()
    snapshots: tuple[SnapshotFigures, ...] = ()
    backfills: tuple[BackfillFigures, ...] = ()
    schema_changes: tuple[SchemaChangeFigures, ...] = ()
    schema_change_counts: tuple[SchemaChangeCount, ...] = ()
    slot: SlotFigures = SlotFigures()  # noqa: RUF009 - immutable
    log: LogFigures = LogFigures()  # noqa: RUF009 - immutable
    pins: tuple[PinFigures, ...] = ()
    leading: LeaderFigures | None = None
    """Without followers, None."""
    following: FollowingFigures | None = None
    """None, unless this machine follows a leader."""
    watch: WatchFigures | None = None
    """None, unless the settings have `alerts`."""
