"""The figures of what is kept for readers: WAL for the slot, and the log for pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tailrace.observe.figure import Figure, Figures, LsnText, gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFigures(Figures):
    """The replication slot, as PostgreSQL described it at `checked_at`."""

    active: Annotated[
        bool, Figure("1 while a connection reads the slot.", gauge("bridge_slot_active"))
    ] = False
    kept_wal_bytes: Annotated[
        int | None,
        Figure(
            "WAL that PostgreSQL keeps for the slot.",
            gauge("bridge_wal_lag_bytes"),
            gauge("tailrace_slot_kept_wal_bytes"),
        ),
    ] = None
    lag_bytes: Annotated[
        int | None,
        Figure(
            "WAL between the server's end and the position that capture has acknowledged.",
            gauge("tailrace_slot_lag_bytes"),
        ),
    ] = None
    tables: Annotated[
        int | None, Figure("Tables of the publication.", gauge("tailrace_published_tables"))
    ] = None
    checked_at: Annotated[str | None, Figure("When PostgreSQL was asked last.")] = None
    error: Annotated[str | None, Figure("Why the figures are old, or the slot is lost.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigures(Figures):
    """The log on disk; only `error` if the log is missing or unreadable."""

    end: Annotated[str, Figure("Position of the last change.")] = ""
    end_lsn: Annotated[
        LsnText | None, Figure("WAL position at which the log ends.", gauge("tailrace_log_end_lsn"))
    ] = None
    earliest: Annotated[str, Figure("Position before the first change.")] = ""
    bytes: Annotated[
        int | None, Figure("Size of the log on disk.", gauge("tailrace_log_bytes"))
    ] = None
    segments: Annotated[
        int | None, Figure("Segments of the log.", gauge("tailrace_log_segments"))
    ] = None
    error: Annotated[str, Figure("Why there are no figures.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinFigures(Figures):
    """A reader for which the log is kept."""

    LABELS: ClassVar = {"pin": "name"}

    name: Annotated[str, Figure("Name of the reader.")]
    position: Annotated[str, Figure("The log keeps every change after this position.")] = ""
    age_s: Annotated[
        float,
        Figure("Seconds since the reader renewed the pin.", gauge("tailrace_log_pin_age_seconds")),
    ] = 0.0
