"""A snapshot on its way into a stream, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.config import NatsSink
    from tailrace.encode.compression import Compression
    from tailrace.encode.encoder import EncodingName
    from tailrace.snapshot.exported import Exported
    from tailrace.snapshot.table import Table


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

    @property
    def subject(self) -> str:
        """What the subjects of its chunks begin with."""
        return f"init.snap.{self.path}.{self.id}."

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
