"""Assembly: turns received messages into entries of whole transactions, or fragments of one.

Works on whole batches: numpy finds where transactions begin and end, their LSNs, times and change
counts for thousands of messages at once; nothing here runs per message. Assembly checks the grammar
of the stream. It drops a transaction that the log already holds by its commit LSN, never by a row
LSN: row LSNs go backwards between transactions.
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
class _OpenTransaction:
    """A transaction of which at least one fragment was returned, and no commit yet."""

    xid: int
    lsn: int
    time: int
    replayed: bool
    origin: list[bytes]
    """The Origin message, if there was one: every fragment repeats it."""
    next_ordinal: int = 0


@dataclass(frozen=True, slots=True)
class _Units:
    """The units of a batch, in order: whole transactions and non-transactional messages.

    For two transactions with a non-transactional message (m) between them:

        index    0 1 2 3   4   5 6 7
        message  B I I C   m   B U C
        ends           3   4       7
        lsns        0/50  0/6F  0/90

    The LSN of a transaction is that of its commit. The LSN of m on the wire, 0/70, is the end of
    its record, where the next commit may be; the byte before it belongs to m alone.
    """

    lsns: NDArray[np.uint64]
    ends: Indices

    def __len__(self) -> int:
        return len(self.lsns)

    @property
    def last_begin(self) -> int:
        """The index of the first message of the last unit."""
        return int(self.ends[-2]) + 1 if len(self) > 1 else 0


class Assembler:
    """Follows one stream from the end of the log."""

    def __init__(self, mark: Mark, *, spill_bytes: int) -> None:
        self._spill_bytes = spill_bytes
        self._last = mark.position
        self._lsn = int(mark.position.lsn)
        self._time = mark.time
        self.end_lsn = mark.end_lsn
        """End of the last whole transaction that was taken."""
        self._open: _OpenTransaction | None = None
        self._pending_schemas: list[bytes] = []
        self._commit_times: list[NDArray[np.int64]] = []

    @property
    def between_transactions(self) -> bool:
        """Whether no transaction is open of which a fragment was returned."""
        return self._open is None

    def pop_commit_times(self) -> NDArray[np.int64]:
        """Commit times of the transactions of all entries since the last call, as on the wire."""
        times, self._commit_times = self._commit_times, []
        return np.concatenate([np.empty(0, np.int64), *times])

    def take(self, data: bytes | bytearray, ends: NDArray[np.uint32]) -> tuple[list[Entry], int]:
        """Entries for whole transactions and for what is too large to wait, and the message count.

        `ends` says where in `data` each message ends. The count says how many messages the entries
        cover; the caller passes the rest again with what it receives next. With spill_bytes = 100:

            open transaction   messages received             result
            no                 B I C B I C                   1 TRANSACTIONS, covers 6
            no                 B I C B I        (80 bytes)   1 TRANSACTIONS, covers 3
            no                 B I I I          (120 bytes)  1 FRAGMENT (begins), covers 4
            yes                I I              (80 bytes)   nothing, covers 0
            yes                I C B I C                     1 FRAGMENT (ends), 1 TRANSACTIONS
        """
        batch = Batch.of(data, ends)
        ignored = batch.ignored()
        if ignored.any():
            return self._take_without(batch, ignored)
        entries: list[Entry | None] = []
        at = 0
        if self._open is not None:
            at = self._end_of_fragment(batch, len(data))
            if not at:
                return [], 0
            entries.append(self._fragment(batch.part(0, at)))
        unit_ends = np.concatenate([batch.commits, batch.loose])
        boundary = max(int(unit_ends.max()) + 1 if len(unit_ends) else 0, at)
        if boundary > at:
            entries.append(self._transactions(batch.part(at, boundary)))
        tail_bytes = len(data) - int(batch.offsets[boundary])
        if boundary < len(batch) and tail_bytes >= self._spill_bytes:
            entries.append(self._fragment(batch.part(boundary, len(batch))))
            boundary = len(batch)
        return [entry for entry in entries if entry is not None], boundary

    def _take_without(self, batch: Batch, ignored: NDArray[np.bool_]) -> tuple[list[Entry], int]:
        """The same as `take` if these messages were not there; they count as covered."""
        kept = np.flatnonzero(~ignored)
        messages = batch.only(~ignored)
        ends = np.cumsum([len(each) for each in messages], dtype=np.uint32)
        entries, covered = self.take(b"".join(messages), ends) if len(kept) else ([], 0)
        return entries, int(kept[covered]) if covered < len(kept) else len(batch)

    def _end_of_fragment(self, batch: Batch, size_bytes: int) -> int:
        """Up to which message the open transaction gets a fragment; 0 to wait for more."""
        if len(batch.commits):
            return int(batch.commits[0]) + 1
        return len(batch) if size_bytes >= self._spill_bytes else 0

    def _transactions(self, batch: Batch) -> Entry | None:
        """An entry of the units that the log does not hold yet; None if it holds all of them."""
        units = _units(batch)
        replayed = int(np.searchsorted(units.lsns, np.uint64(self._lsn), "right"))
        if replayed == 0:
            return self._entry_of(batch, units)
        cut = int(units.ends[replayed - 1]) + 1
        self._keep_schemas(batch.part(0, cut))
        if replayed == len(units):
            return None
        rest = batch.part(cut, len(batch))
        return self._entry_of(rest, _units(rest))

    def _entry_of(self, batch: Batch, units: _Units) -> Entry:
        counts = batch.change_counts()
        first_time, last_time = self._times(batch)
        last_count = int(counts[units.last_begin :].sum())
        self._lsn = int(units.lsns[-1])
        self._last = Position(Lsn(self._lsn), max(last_count - 1, 0))
        if len(batch.commits):
            self.end_lsn = Lsn(int(batch.number(batch.commits[-1:], 10)[0]))
        offsets, body, schemas = batch.packed(self._pop_schemas())
        return Entry(
            kind=Kind.TRANSACTIONS,
            first=Position(Lsn(int(units.lsns[0])), 0),
            last=self._last,
            end_lsn=self.end_lsn,
            first_time=first_time,
            last_time=last_time,
            transactions=len(batch.commits),
            changes=int(counts.sum()),
            schemas=schemas,
            offsets=offsets,
            body=body,
        )

    def _times(self, batch: Batch) -> tuple[int, int]:
        """The commit time of the first unit and the latest one.

        A non-transactional message has no time of its own: it takes that of the last transaction
        before it, which may be in an earlier entry. Commit times may go backwards.
        """
        times = batch.number(batch.begins, 9, ">i8")
        first = self._time
        if not len(times):
            return first, self._time
        if len(batch.loose) == 0 or batch.begins[0] < batch.loose[0]:
            first = int(times[0])
        self._time = int(times[-1])
        self._commit_times.append(times)
        return first, int(times.max())

    def _fragment(self, batch: Batch) -> Entry | None:
        """An entry with a part of the open transaction; None if the log already holds it."""
        begins = self._open is None
        open_ = self._open = self._open or self._begin(batch)
        repeated = open_.origin
        if not open_.next_ordinal:
            # The origin follows BEGIN, before the first change, and a fragment may end before it.
            open_.origin = repeated + batch.origin()
        ends = self._check_commit(batch, open_)
        if open_.replayed:
            self._keep_schemas(batch)
            return None
        changes = int(batch.change_counts().sum())
        first = Position(Lsn(open_.lsn), open_.next_ordinal)
        open_.next_ordinal += changes
        if changes:
            self._last = Position(Lsn(open_.lsn), open_.next_ordinal - 1)
        if ends:
            self._lsn, self._time = open_.lsn, open_.time
            self._commit_times.append(np.array([open_.time], np.int64))
            self.end_lsn = Lsn(int(batch.number(batch.commits, 10)[0]))
        offsets, body, schemas = batch.packed(self._pop_schemas() + repeated)
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

    def _begin(self, batch: Batch) -> _OpenTransaction:
        if len(batch.begins) != 1 or batch.begins[0] != 0:
            raise MalformedError("changes arrived outside of a transaction")
        lsn = int(batch.number(batch.begins, 1)[0])
        return _OpenTransaction(
            xid=int(batch.number(batch.begins, 17, ">u4")[0]),
            lsn=lsn,
            time=int(batch.number(batch.begins, 9, ">i8")[0]),
            replayed=lsn <= self._lsn,
            origin=[],
        )

    def _check_commit(self, batch: Batch, open_: _OpenTransaction) -> bool:
        """Whether the batch ends the open transaction."""
        if not len(batch.commits):
            return False
        if int(batch.number(batch.commits, 2)[0]) != open_.lsn or len(batch.commits) > 1:
            raise MalformedError("a COMMIT has another LSN than its BEGIN announced")
        self._open = None
        return True

    def _keep_schemas(self, batch: Batch) -> None:
        """Keep the schemas of dropped messages: PostgreSQL sends them once per session."""
        self._pending_schemas += batch.schemas()

    def _pop_schemas(self) -> list[bytes]:
        schemas, self._pending_schemas = self._pending_schemas, []
        return schemas


def _units(batch: Batch) -> _Units:
    """The units of a batch that ends with a whole unit. Raises MalformedError for bad grammar."""
    begins, commits, loose = batch.begins, batch.commits, batch.loose
    paired = len(begins) == len(commits) and (begins < commits).all()
    if not paired or (begins[1:] < commits[:-1]).any():
        raise MalformedError("BEGIN and COMMIT do not pair up in the stream")
    # A message is inside a transaction where more BEGINs than COMMITs precede it.
    inside = np.searchsorted(begins, loose) != np.searchsorted(commits, loose)
    if inside.any():
        raise MalformedError("a non-transactional message is inside a transaction")
    lsns = batch.number(begins, 1)
    if (lsns != batch.number(commits, 2)).any():
        raise MalformedError("a COMMIT has another LSN than its BEGIN announced")
    ends = np.concatenate([commits, loose])
    loose_lsns = np.maximum(batch.number(loose, 2), 1) - np.uint64(1)
    unit_lsns = np.concatenate([lsns, loose_lsns]).astype(np.uint64)
    order = np.argsort(ends)
    units = _Units(unit_lsns[order], ends[order])
    if (units.lsns[1:] <= units.lsns[:-1]).any():
        raise MalformedError("commit LSNs go backwards in the stream")
    return units
