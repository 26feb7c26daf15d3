"""Messages on their way into files: one spool per folder, bounded in memory.

Messages are buffered as columns. A spool that has enough for a row group, or the largest one if all
together have too much, appends them to its temporary file.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.message import last_of
from tailrace.sinks.file.destination import file_name
from tailrace.sinks.file.failures import translated
from tailrace.sinks.file.formats import writer_of
from tailrace.sinks.file.progress import first_of
from tailrace.sinks.file.store import Move

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tailrace.position import Position
    from tailrace.sinks.file.formats import Writer
    from tailrace.sinks.file.settings import FileSink
    from tailrace.sinks.file.store import Store

_GROUP_BYTES = 16 << 20
"""Payloads in a row group."""
_GROUP_ROWS = 131_072
_MAX_BEGUN = 400
"""Files that are begun at a time. Each may need a descriptor, and a process has 1,024."""
_DAY_US = 86_400_000_000


@dataclass(slots=True, kw_only=True)
class _Spool:
    """The messages of one folder."""

    first: Position
    last: Position
    rows: int = 0
    bytes: int = 0
    buffered: list[pa.RecordBatch] = field(default_factory=list)
    buffered_rows: int = 0
    buffered_bytes: int = 0
    """In memory, of all columns."""
    temporary: str = ""
    writer: Writer | None = None

    def add(self, rows: pa.RecordBatch, size: int) -> None:
        self.buffered.append(rows)
        self.last = last_of(rows)
        self.rows += rows.num_rows
        self.bytes += size
        self.buffered_rows += rows.num_rows
        self.buffered_bytes += rows.nbytes

    @property
    def due(self) -> bool:
        """Whether it has enough for a row group."""
        return self.buffered_bytes >= _GROUP_BYTES or self.buffered_rows >= _GROUP_ROWS


class Spools:
    """The files that a lane writes at present. `temporary` gives each a new temporary name."""

    def __init__(
        self, settings: FileSink, store: Store, *, temporary: Callable[[], str], lane: int, tag: str
    ) -> None:
        self._settings = settings
        self._store = store
        self._temporary = temporary
        self._lane = lane
        self._tag = tag
        self._spools: dict[str, _Spool] = {}

    def __bool__(self) -> bool:
        return bool(self._spools)

    @property
    def rows(self) -> int:
        """Messages in all files."""
        return sum(spool.rows for spool in self._spools.values())

    @property
    def bytes(self) -> int:
        """Bytes of payloads in all files."""
        return sum(spool.bytes for spool in self._spools.values())

    @property
    def full(self) -> bool:
        """Whether a file is as large as it may be, or more of them are begun than may be."""
        spools, settings = self._spools.values(), self._settings
        return sum(spool.writer is not None for spool in spools) >= _MAX_BEGUN or any(
            spool.rows >= settings.roll_rows or spool.bytes >= settings.roll_bytes
            for spool in spools
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Take messages that come after all others."""
        for folder, rows in by_folder(batch, by_date=self._settings.partition == "date"):
            spool = self._spools.get(folder)
            if spool is None:
                spool = _Spool(first=first_of(rows), last=last_of(rows))
                self._spools[folder] = spool
            spool.add(rows, int(pc.sum(pc.binary_length(rows.column("payload"))).as_py()))
            if spool.due:
                self._spill(spool)
        while self._buffered_bytes > self._settings.buffer_bytes:
            self._spill(max(self._spools.values(), key=lambda spool: spool.buffered_bytes))

    @property
    def _buffered_bytes(self) -> int:
        return sum(spool.buffered_bytes for spool in self._spools.values())

    def _spill(self, spool: _Spool) -> None:
        with translated("cannot write a temporary file"):
            if spool.writer is None:
                spool.temporary = self._temporary()
                path = self._store.spool(spool.temporary)
                spool.writer = writer_of(self._settings, path)
            spool.writer.write(spool.buffered)
        spool.buffered, spool.buffered_rows, spool.buffered_bytes = [], 0, 0

    def complete(self) -> list[Move]:
        """Store all files under their temporary names; their moves. Then there are no spools."""
        for spool in self._spools.values():
            if spool.buffered:
                self._spill(spool)
            assert spool.writer is not None
            with translated("cannot write a temporary file"):
                spool.writer.close()
        moves = [self._move(folder, spool) for folder, spool in self._spools.items()]
        self._store.stage([move.temporary for move in moves])
        self._spools.clear()
        return moves

    def _move(self, folder: str, spool: _Spool) -> Move:
        name = file_name(
            spool.first,
            spool.last,
            lane=self._lane,
            tag=self._tag,
            suffix=self._settings.suffix,
        )
        return Move(temporary=spool.temporary, final=f"{folder}/{name}")

    def discard(self) -> None:
        """Forget all messages."""
        spools, self._spools = self._spools, {}
        for spool in spools.values():
            if spool.writer is not None:
                # Its file is deleted: it does not matter whether it could be completed.
                with contextlib.suppress(OSError, pa.ArrowException):
                    spool.writer.close()
        self._store.discard(spool.temporary for spool in spools.values() if spool.temporary)


def by_folder(batch: pa.RecordBatch, *, by_date: bool) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The messages of each folder, in order."""
    coded = batch.column("destination").dictionary_encode()
    folders = [value.decode() for value in coded.dictionary.to_pylist()]
    codes: NDArray[np.int64] = coded.indices.to_numpy().astype(np.int64)
    if by_date:
        days = batch.column("committed_at").to_numpy() // _DAY_US
        pairs, codes = np.unique(np.stack([codes, days]), axis=1, return_inverse=True)
        codes = codes.reshape(-1)
        dates = pairs[1].astype("datetime64[D]").astype(str)
        folders = [
            f"{folders[code]}/date={date}" for code, date in zip(pairs[0], dates, strict=True)
        ]
    if len(folders) == 1:
        yield folders[0], batch
        return
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(folders)))
    for folder, rows in zip(folders, np.split(order, ends[:-1]), strict=True):
        yield folder, batch.take(pa.array(rows))
