"""Figures of tables that are read whole: snapshots and backfills."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - get_type_hints reads the annotations
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tailrace.observe.figure import Figure, Figures, Metric, gauge


def _copy_metrics(kind: str) -> Mapping[str, tuple[Metric, ...]]:
    """The metrics of snapshots and of backfills: the same figures under two prefixes."""
    prefix = f"tailrace_{kind}_"
    return {
        "state": (
            gauge(f"{prefix}running", help=f"1 while the {kind} runs.", when="running"),
            gauge(f"{prefix}failed", help=f"1 if the {kind} failed.", when="failed"),
        ),
        "share": (gauge(f"{prefix}share"),),
        "rows": (gauge(f"{prefix}rows"),),
        "bytes": (gauge(f"{prefix}bytes"),),
        "seconds": (gauge(f"{prefix}seconds"),),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _CopyFigures(Figures):
    """A table that is read whole. Metrics show the last one of its table only: ids as labels would
    grow without limit."""

    METRICS: ClassVar[Mapping[str, tuple[Metric, ...]]] = {}

    id: Annotated[str, Figure("Id of the snapshot or backfill.")] = ""
    table: Annotated[str, Figure("Table, with its schema.")] = ""
    state: Annotated[str, Figure("queued, running, retrying, complete, failed …")] = ""
    rows: Annotated[int, Figure("Rows published.")] = 0
    bytes: Annotated[int, Figure("Bytes of these rows, before compression.")] = 0
    share: Annotated[float, Figure("Share of the table that is done, from 0 to 1.")] = 0.0
    seconds: Annotated[float, Figure("Seconds since it began.")] = 0.0
    error: Annotated[str, Figure("Why it failed or is retried.")] = ""

    @property
    def rows_per_s(self) -> float | None:
        """Rows per second, on average."""
        return self.rows / self.seconds if self.seconds else None

    @property
    def eta_s(self) -> float | None:
        """Estimate of the seconds left, from the share done so far."""
        if self.state != "running" or not self.share:
            return None
        return self.seconds * (1 - self.share) / self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFigures(_CopyFigures):
    """A snapshot on request."""

    LABELS: ClassVar = {"table": "table"}
    METRICS: ClassVar = _copy_metrics("snapshot")

    format: Annotated[str, Figure("Message format: rows, or a system's own.")] = ""
    requested_at: Annotated[float, Figure("When it was requested, in seconds since 1970.")] = 0.0
    chunks: Annotated[int, Figure("Chunks published.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillFigures(_CopyFigures):
    """A backfill of a pipeline."""

    LABELS: ClassVar = {"pipeline": "pipeline", "table": "table"}
    METRICS: ClassVar = _copy_metrics("backfill")

    pipeline: Annotated[str, Figure("Pipeline that delivers the rows.")] = ""
    rows_read: Annotated[int, Figure("Rows read from PostgreSQL.")] = 0
    rows_expected: Annotated[int, Figure("PostgreSQL's estimate of the table's rows.")] = 0
    page_rows: Annotated[int, Figure("Rows per page at present.")] = 0
