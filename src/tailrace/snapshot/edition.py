"""A snapshot on its way into a stream, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tailrace.config import NatsSink
    from tailrace.encode.compression import Compression
    from tailrace.encode.encoder import EncodingName
    from tailrace.snapshot.exported import Exported
    from tailrace.snapshot.table import Table

Form = Literal["rows", "copy"]
"""What chunks hold: messages with rows, or the text that COPY writes and reads."""
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
class Edition:
    """A snapshot on its way into a stream."""

    id: str
    dsn: str
    snapshot: Exported
    table: Table
    conditions: tuple[str, ...] = ()
    """The publication's own, which rows of the stream pass too."""
    path: str
    """The table in subjects."""
    encoding: EncodingName
    chunk_rows: int
    sink: NatsSink
    compression: Compression | None = None
    form: Form = "rows"

    @property
    def subject(self) -> str:
        """What the subjects of its chunks begin with."""
        return f"{chunk_prefix(self.form)}.{self.path}.{self.id}."

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self.table.relation.columns]

    @property
    def dictionary(self) -> str:
        """The key of its dictionary in the bucket `dictionaries`."""
        number = self.compression.number if self.compression else 0
        return f"{self.id}.{number}"

    @property
    def facts(self) -> dict[str, object]:
        """What every chunk says of it."""
        relation = self.table.relation
        return {
            "table": relation.name,
            "schema": relation.namespace,
            "operation": "snapshot",
            "snapshot_id": self.id,
            "lsn": str(self.snapshot.lsn),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What became of some stretches. `beyond` is the first chunk number that is free."""

    chunks: int
    rows: int
    bytes: int
    beyond: int
