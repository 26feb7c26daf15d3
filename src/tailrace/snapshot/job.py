"""A snapshot that is being published to a stream: the job, its waves and their result.

Values only. `tailrace.snapshot.service` creates them, `tailrace.pipeline.publish` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tailrace.jetstream.settings import JetStreamSettings
    from tailrace.snapshot.export import Exported
    from tailrace.snapshot.formats import Format
    from tailrace.snapshot.table import Stretch, Table

Form = Literal["rows", "copy"]
"""The content of chunks: rows in the pipeline's encoding, or the text form of COPY."""
FormatName = Literal["rows", "copy", "creek"]
_PREFIXES: dict[Form, tuple[str, str]] = {
    "rows": ("init.snap", "init.meta"),
    "copy": ("init.copy", "init.copymeta"),
}


def chunk_prefix(form: Form) -> str:
    """The prefix of the chunks' subjects."""
    return _PREFIXES[form][0]


def meta_prefix(form: Form) -> str:
    """The prefix of the metadata's subjects."""
    return _PREFIXES[form][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotJob:
    """One snapshot of one table: where its rows come from, and how they are published."""

    dsn: str
    snapshot: Exported
    table: Table
    conditions: tuple[str, ...] = ()
    """The publication's row filter: the stream applies it too."""
    sink: JetStreamSettings
    format: Format

    @property
    def columns(self) -> list[str]:
        """The names of the table's columns."""
        return [column.name for column in self.table.relation.columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Stretches that are published in parallel."""

    stretches: list[Stretch]
    number: int
    """The first free chunk number. With n stretches, stretch i uses number + i, + i + n, ..."""
    after: int
    """The stream sequence of the last message before the first attempt at this wave."""
    again: bool = False
    """Whether an earlier attempt may have stored some of the wave's messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The result of a wave."""

    chunks: int
    rows: int
    bytes: int
    beyond: int
    """The first free chunk number."""
    last: int
    """The stream sequence after the wave: the whole wave is before it, the next one after it."""
