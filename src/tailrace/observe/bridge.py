"""The figures of the PostgreSQL-to-NATS bridge: its `/status` fields and its METRICS line.

Dashboards and parsers of the bridge read these names, so they never change. All of them follow from
`SystemFigures`; metrics that follow from one figure alone (`bridge_connected` …) stand with that
figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tailrace.observe.figure import Figure, Figures, counter, gauge

if TYPE_CHECKING:
    from tailrace.observe.figures import SystemFigures

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeFigures(Figures):
    """The first fields of `/status`, in the bridge's order."""

    status: Annotated[str, Figure("connected or disconnected.")]
    uptime_seconds: Annotated[
        int, Figure("Seconds since the start.", gauge("bridge_uptime_seconds"))
    ]
    wal_messages_received: Annotated[int, Figure("Replication messages appended to the log.")]
    cdc_events_published: Annotated[
        int, Figure("Events acknowledged by sinks.", counter("bridge_cdc_events_published"))
    ]
    current_lsn: Annotated[str, Figure("WAL position last acknowledged to PostgreSQL.")]
    is_connected: Annotated[bool, Figure("Whether capture streams changes.")]
    reconnect_count: Annotated[
        int,
        Figure("Times capture has reconnected to PostgreSQL.", counter("bridge_reconnects")),
    ]
    nats_reconnect_count: Annotated[
        int,
        Figure(
            "Times pipelines have reconnected to their sinks.", counter("bridge_nats_reconnects")
        ),
    ]
    last_processing_time_us: Annotated[
        int,
        Figure(
            "Microseconds of the last micro-batch, slowest pipeline.",
            gauge("bridge_last_processing_time_us"),
        ),
    ]
    slot_active: Annotated[bool, Figure("Whether a connection reads the slot.")]
    wal_lag_bytes: Annotated[int | None, Figure("WAL that PostgreSQL keeps for the slot.")]
    wal_lag_mb: Annotated[int | None, Figure("The same, in MiB.")]


def bridge_figures(figures: SystemFigures) -> BridgeFigures:
    """The bridge's fields for a system."""
    capture, slot, pipelines = figures.capture, figures.slot, figures.pipelines
    kept_bytes = slot.kept_wal_bytes
    slowest_ms = max((pipeline.batch_ms or 0 for pipeline in pipelines), default=0)
    return BridgeFigures(
        status="connected" if capture.connected else "disconnected",
        uptime_seconds=int(figures.uptime_s),
        wal_messages_received=capture.messages,
        cdc_events_published=sum(pipeline.events for pipeline in pipelines),
        current_lsn=str(capture.acknowledged).lower(),
        is_connected=capture.connected,
        reconnect_count=capture.reconnects,
        nats_reconnect_count=sum(pipeline.reconnects for pipeline in pipelines),
        last_processing_time_us=round(slowest_ms * 1000),
        slot_active=slot.active,
        wal_lag_bytes=kept_bytes,
        wal_lag_mb=None if kept_bytes is None else kept_bytes // _MIB,
    )


def metrics_line(figures: SystemFigures) -> str:
    """The METRICS line, as parsers of the bridge's log expect it.

    >>> from tailrace.observe.figures import SystemFigures
    >>> metrics_line(SystemFigures(version="1", uptime_s=15.3))
    'METRICS uptime=15 wal_messages=0 cdc_events=0 lsn=0/0 connected=0 reconnects=0 \
nats_reconnects=0 lag_bytes=0 slot_active=0'
    """
    bridge = bridge_figures(figures)
    values = {
        "uptime": bridge.uptime_seconds,
        "wal_messages": bridge.wal_messages_received,
        "cdc_events": bridge.cdc_events_published,
        "lsn": bridge.current_lsn,
        "connected": int(bridge.is_connected),
        "reconnects": bridge.reconnect_count,
        "nats_reconnects": bridge.nats_reconnect_count,
        "lag_bytes": bridge.wal_lag_bytes or 0,
        "slot_active": int(bridge.slot_active),
    }
    return "METRICS " + " ".join(f"{key}={value}" for key, value in values.items())
