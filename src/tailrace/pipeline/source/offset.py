"""The offset of a micro-batch: where it ends in the log, and which backfill pages it delivers.

Spark stores offsets as JSON in its checkpoint, so the keys are a format on disk: `position`,
`history` (what the position belongs to, see `tailrace.checkpoint`), `chunk` (the last delivered
page), `chunks` (the pages of this batch), `beat`, `opened`, `open`, `timeline` and `release`. Spark
starts a batch when the text of the offset changes.

The offset of an open batch (`tailrace.open_batch`) has `open`: its position is where the batch
begins, and with the number `opened` names the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.open_batch import OpenBatch
from tailrace.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The end of a micro-batch.

    >>> Offset.parse({"position": "0/1A.3", "chunk": 7, "chunks": [6, 7]}).dump()
    {'position': '0/1A.3', 'chunk': 7, 'chunks': [6, 7]}
    """

    position: Position
    history: str = ""
    """The history that the position belongs to; empty for a start that nothing was read from."""
    page: int = 0
    """The number of the last delivered page of a backfill; it never falls."""
    pages: tuple[int, ...] = ()
    """The pages that this micro-batch delivers."""
    heartbeat: int = 0
    """Counts batches without changes: the only difference between two offsets of one position."""
    opened: int = 0
    """The number of the last open batch, up to this one."""
    open: bool = False
    """Whether this batch is open. Its position is then where it begins."""
    timeline: int = 0
    """The timeline of the log, if the position is after the last change: that of a backfill's page.
    WAL up to there, which has no change, may be missing on a standby that is promoted."""

    release: int = 0
    """The number of the last release of parked messages. A batch with a new one delivers nothing
    else; its position is that of the last message of the release."""

    @property
    def open_batch(self) -> OpenBatch:
        """The identity of this open batch."""
        assert self.open
        return OpenBatch(self.opened, self.position)

    @classmethod
    def parse(cls, offset: dict[str, object]) -> Offset:
        """Read Spark's JSON object."""
        pages = offset.get("chunks", [])
        assert isinstance(pages, list)
        return cls(
            position=Position.parse(str(offset["position"])),
            history=str(offset.get("history", "")),
            page=int(str(offset.get("chunk", 0))),
            pages=tuple(pages),
            heartbeat=int(str(offset.get("beat", 0))),
            opened=int(str(offset.get("opened", 0))),
            open=bool(offset.get("open", False)),
            timeline=int(str(offset.get("timeline", 0))),
            release=int(str(offset.get("release", 0))),
        )

    def dump(self) -> dict[str, object]:
        """The JSON object; keys without a value are left out."""
        offset: dict[str, object] = {"position": str(self.position)}
        if self.history:
            offset["history"] = self.history
        if self.page:
            offset["chunk"] = self.page
        if self.pages:
            offset["chunks"] = list(self.pages)
        if self.heartbeat:
            offset["beat"] = self.heartbeat
        if self.opened:
            offset["opened"] = self.opened
        if self.open:
            offset["open"] = True
        if self.timeline:
            offset["timeline"] = self.timeline
        if self.release:
            offset["release"] = self.release
        return offset
