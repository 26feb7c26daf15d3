"""Assembly: received messages become entries of whole transactions, or fragments of one.

Works on whole batches: where transactions begin and end, their LSNs, times and change counts are
found for thousands of messages at once; nothing here runs per message. The stream's own grammar is
checked on the way, and a transaction the log already holds is dropped by its commit LSN (never by
row LSN: those go backwards between transactions).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.capture.batch import Batch
from tailrace.errors import MalformedError
from tailrace.log.format.entry import Entry, Kind
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.capture.batch import Indices
    from tailrace.log.format.mark import Mark


@dataclass(slots=True)
class _Open:
    """A transaction whose first messages are already out of our hands."""

    xid: int
    lsn: int
    time: int
    replayed: bool
    origin: list[bytes]
    """The Origin message, if there was one: every fragment restates it."""
    next_ordinal: int = 0


class Assembler:
    """Follows one stream from where the log ends."""

    def __init__(self, mark: Mark, *, spill_bytes: int) -> None:
        self._spill_bytes = spill_bytes
        self._last = mark.position
        self._lsn = int(mark.position.lsn)
        self._time = mark.time
        self.end_lsn = mark.end_lsn
        """End of the last whole transaction taken in."""
        self._open: _Open | None = None
        self._carried: list[bytes] = []

    @property
    def between_transactions(self) -> bool:
        """Whether no transaction is half handed out."""
        return self._open is None

    def take(self, data: bytes | bytearray, ends: NDArray[np.uint32]) -> tuple[list[Entry], int]:
        """Entries for what is whole or too large to wait, and how many messages they cover.

        `ends` says where in `data` each message ends. Nothing is kept of either.
        """
        batch = Batch.of(data, ends)
        entries: list[Entry | None] = []
        at = 0
        if self._open is not None:
            if len(batch.commits):
                at = int(batch.commits[0]) + 1
            elif len(data) >= self._spill_bytes:
                at = len(batch)
            if not at:
                return [], 0
            entries.append(self._fragment(batch.part(0, at)))
        closers = np.concatenate([batch.commits, batch.loose])
        boundary = max(int(closers.max()) + 1 if len(closers) else 0, at)
        if boundary > at:
            entries.append(self._transactions(batch.part(at, boundary)))
        tail_bytes = len(data) - int(batch.offsets[boundary])
        if boundary < len(batch) and tail_bytes >= self._spill_bytes:
            entries.append(self._fragment(batch.part(boundary, len(batch))))
            boundary = len(batch)
        return [entry for entry in entries if entry is not None], boundary

    def _transactions(self, batch: Batch) -> Entry | None:
        units, unit_ends = self._check_grammar(batch)
        known = int(np.searchsorted(units, np.uint64(self._lsn), "right"))
        if known:
            cut = int(unit_ends[known - 1]) + 1
            self._carry(batch.part(0, cut))
            if known == len(units):
                return None
            return self._transactions(batch.part(cut, len(batch)))
        counts = batch.change_counts()
        last_unit_at = int(unit_ends[-2]) + 1 if len(units) > 1 else 0
        times = batch.number(batch.begins, 9, ">i8")
        first_time = self._time
        if len(times):
            self._time = int(times[-1])
            if len(batch.loose) == 0 or batch.begins[0] < batch.loose[0]:
                first_time = int(times[0])
            self.end_lsn = Lsn(int(batch.number(batch.commits[-1:], 10)[0]))
        last_count = int(counts[last_unit_at:].sum())
        self._last = Position(Lsn(int(units[-1])), max(last_count - 1, 0))
        self._lsn = int(units[-1])
        offsets, body, schemas = batch.packed(self._uncarry())
        return Entry(
            kind=Kind.TRANSACTIONS,
            first=Position(Lsn(int(units[0])), 0),
            last=self._last,
            end_lsn=self.end_lsn,
            first_time=first_time,
            last_time=max(self._time, int(times.max()) if len(times) else self._time),
            transactions=len(batch.commits),
            changes=int(counts.sum()),
            schemas=schemas,
            offsets=offsets,
            body=body,
        )

    @staticmethod
    def _check_grammar(batch: Batch) -> tuple[NDArray[np.uint64], Indices]:
        """The LSN of each unit (transaction or loose message) and the index where it ends.

        A loose message's LSN is the end of its record, where the next commit may stand; the byte
        before it belongs to the message alone.
        """
        begins, commits, loose = batch.begins, batch.commits, batch.loose
        paired = len(begins) == len(commits) and (begins < commits).all()
        if not paired or (begins[1:] < commits[:-1]).any():
            raise MalformedError("BEGIN and COMMIT do not pair up in the stream")
        inside = np.searchsorted(begins, loose) != np.searchsorted(commits, loose)
        if inside.any():
            raise MalformedError("a non-transactional message stands inside a transaction")
        lsns = batch.number(begins, 1)
        if (lsns != batch.number(commits, 2)).any():
            raise MalformedError("a COMMIT has another LSN than its BEGIN announced")
        ends = np.concatenate([commits, loose])
        loose_lsns = np.maximum(batch.number(loose, 2), 1) - np.uint64(1)
        units = np.concatenate([lsns, loose_lsns]).astype(np.uint64)
        order = np.argsort(ends)
        units, ends = units[order], ends[order]
        if (units[1:] <= units[:-1]).any():
            raise MalformedError("commit LSNs go backwards in the stream")
        return units, ends

    def _fragment(self, batch: Batch) -> Entry | None:
        begins = self._open is None
        open_ = self._open = self._open or self._opened(batch)
        restated = open_.origin
        if not open_.next_ordinal:
            # The origin stands between BEGIN and the first change, and a piece may end there too.
            open_.origin = restated + batch.origin()
        ends = len(batch.commits) > 0
        if ends:
            if int(batch.number(batch.commits, 2)[0]) != open_.lsn or len(batch.commits) > 1:
                raise MalformedError("a COMMIT has another LSN than its BEGIN announced")
            self._open = None
        if open_.replayed:
            self._carry(batch)
            return None
        changes = int(batch.change_counts().sum())
        first = Position(Lsn(open_.lsn), open_.next_ordinal)
        open_.next_ordinal += changes
        if changes:
            self._last = Position(Lsn(open_.lsn), open_.next_ordinal - 1)
        if ends:
            self._lsn, self._time = open_.lsn, open_.time
            self.end_lsn = Lsn(int(batch.number(batch.commits, 10)[0]))
        offsets, body, schemas = batch.packed(self._uncarry() + restated)
        return Entry(
            kind=Kind.FRAGMENT,
            first=first,
            last=self._last,
            end_lsn=self.end_lsn,
            first_time=open_.time,
            last_time=open_.time,
            xid=open_.xid,
            begins=begins,
            ends=ends,
            transactions=int(ends),
            changes=changes,
            schemas=schemas,
            offsets=offsets,
            body=body,
        )

    def _opened(self, batch: Batch) -> _Open:
        if len(batch.begins) != 1 or batch.begins[0] != 0:
            raise MalformedError("changes arrived outside of a transaction")
        lsn = int(batch.number(batch.begins, 1)[0])
        return _Open(
            xid=int(batch.number(batch.begins, 17, ">u4")[0]),
            lsn=lsn,
            time=int(batch.number(batch.begins, 9, ">i8")[0]),
            replayed=lsn <= self._lsn,
            origin=[],
        )

    def _carry(self, batch: Batch) -> None:
        """Keep the schemas of what is dropped: the session will not send them again."""
        self._carried += batch.schemas()

    def _uncarry(self) -> list[bytes]:
        carried, self._carried = self._carried, []
        return carried
