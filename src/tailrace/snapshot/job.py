"""A snapshot on its way into a stream, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tailrace.config import NatsSink
    from tailrace.snapshot.export import Exported
    from tailrace.snapshot.formats import Format
    from tailrace.snapshot.table import Stretch, Table

Form = Literal["rows", "copy"]
"""What chunks hold: messages with rows, or the text that COPY writes and reads."""
FormatName = Literal["rows", "copy", "creek"]
_PLACES: dict[Form, tuple[str, str]] = {
    "rows": ("init.snap", "init.meta"),
    "copy": ("init.copy", "init.copymeta"),
}


def chunk_prefix(form: Form) -> str:
    """What the subjects of chunks begin with."""
    return _PLACES[form][0]


def meta_prefix(form: Form) -> str:
    """What the subjects of metadata begin with."""
    return _PLACES[form][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotJob:
    """A snapshot on its way into a stream: where rows come from, and how they are published."""

    dsn: str
    snapshot: Exported
    table: Table
    conditions: tuple[str, ...] = ()
    """The publication's own, which rows of the stream pass too."""
    sink: NatsSink
    format: Format

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self.table.relation.columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Stretches that are published side by side."""

    stretches: list[Stretch]
    number: int
    """The first number that is free; the stretches count from here on, by turns."""
    after: int
    """The last message of the stream when the wave was first begun."""
    again: bool = False
    """Whether an earlier attempt at it may have left messages behind that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What became of a wave."""

    chunks: int
    rows: int
    bytes: int
    beyond: int
    """The first number that is free."""
    last: int
    """The last message of the stream: all of the wave is there, and nothing of the next one."""
