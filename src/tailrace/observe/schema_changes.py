"""The figures of schema changes that produce no row events."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tailrace.observe.figure import Figure, Figures, counter


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChangeFigures(Figures):
    """A change of a table that produced no row events, and how pipelines react to it."""

    kind: Annotated[str, Figure("Kind of the change.")]
    table: Annotated[str, Figure("Table, with its schema.")]
    subject: Annotated[str, Figure("What changed: a column, a type …")]
    detail: Annotated[str, Figure("The change, as a sentence.")]
    hint: Annotated[str, Figure("What to do about it.")]
    lsn: Annotated[str, Figure("WAL position by which it had happened.")]
    found_at: Annotated[str, Figure("When it was detected.")]
    pipelines: Annotated[Mapping[str, str], Figure("Affected pipelines, with their policies.")]
    waiting: Annotated[tuple[str, ...], Figure("Pipelines that have not reacted yet.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChangeCount(Figures):
    """Schema changes of one kind that a pipeline has met, over all runs."""

    LABELS: ClassVar = {"pipeline": "pipeline", "kind": "kind"}

    pipeline: Annotated[str, Figure("Pipeline.")]
    kind: Annotated[str, Figure("Kind of the change.")]
    count: Annotated[
        int,
        Figure(
            "Changes of tables that produced no row events.", counter("tailrace_schema_findings")
        ),
    ]
