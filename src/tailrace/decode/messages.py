"""The messages of one entry as columns: what each message is, and its position.

Reads kinds, transactions, ordinals, times and logical messages of an entry with a fixed number of
numpy calls, whatever the number of messages. `tailrace.decode.decoder` builds groups from these
columns; nothing here knows of relations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode.group import Group
from tailrace.decode.rows import Body
from tailrace.errors import MalformedError
from tailrace.log.format.entry import Entry, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.change import Op
    from tailrace.schema import Relation

    Indices = NDArray[np.int64]

_BEGIN, _TRUNCATE, _MESSAGE = (ord(letter) for letter in "BTM")
_EPOCH_MICROS = 946_684_800_000_000
"""From 1970 to 2000, the epoch of PostgreSQL's times."""

_COUNTS = np.zeros(256, np.int64)
_COUNTS[[ord(letter) for letter in "IUDM"]] = 1
_SORTABLE = np.dtype([("lsn", np.uint64), ("ordinal", np.uint64)])


def sortable(lsn: NDArray[np.uint64], ordinal: NDArray[np.uint64]) -> NDArray[np.void]:
    """Positions as one array that numpy compares by LSN, then by ordinal."""
    positions = np.empty(len(lsn), _SORTABLE)
    positions["lsn"], positions["ordinal"] = lsn, ordinal
    return positions


class Messages:
    """The messages of an entry as columns: the kind and the position of each.

    For an entry of two transactions, at commit LSN 50 and 90, with a TRUNCATE of two tables:

        kinds     B   I   I   C   B   T   I   C
        counts    0   1   1   0   0   2   1   0      changes of each message
        before    0   0   1   2   2   2   4   5      changes before it in the entry
        number    1   1   1   1   2   2   2   2      which transaction: a cumulative sum of the Bs
        opened    0   0   0   0   2   2   2   2      `before` of the transaction's B
        ordinal   0   0   1   2   0   0   2   3      before - opened
        lsn      50  50  50  50  90  90  90  90

    Ordinals count only for changes. A non-transactional message counts 0 changes and has its own
    LSN.
    """

    __slots__ = (
        "body", "contents", "kinds", "logical", "lsn", "ordinal", "prefixes", "starts", "time",
        "xid",
    )  # fmt: skip

    def __init__(self, entry: Entry) -> None:
        self.body = Body(entry.body)
        self.starts = entry.offsets.astype(np.int64)
        self.kinds = self.body.byte(self.starts[:-1])
        counts = _COUNTS[self.kinds]
        truncates = np.flatnonzero(self.kinds == _TRUNCATE)
        if len(truncates):
            counts[truncates] = self.number(truncates, 1, ">u4").astype(np.int64)
        self.logical = np.flatnonzero(self.kinds == _MESSAGE)
        loose = self.logical[self.byte(self.logical, 1) == 0]
        counts[loose] = 0
        before = np.cumsum(counts) - counts
        if entry.kind is Kind.FRAGMENT:
            self._one_transaction(entry, before)
        else:
            self._transactions(entry, before)
        self.prefixes, self.contents = self._read_logical()
        if len(loose):
            # The LSN on the wire is the end of the record, where the next commit may be. The byte
            # before it belongs to the message alone.
            lsn = self.number(loose, 2, ">u8").astype(np.uint64)
            self.lsn[loose] = np.maximum(lsn, np.uint64(1)) - np.uint64(1)
            self.ordinal[loose] = 0
            self.xid[loose] = 0

    def _one_transaction(self, entry: Entry, before: Indices) -> None:
        """The columns of a fragment: its header has everything but the ordinals."""
        count = len(self.kinds)
        self.lsn = np.full(count, entry.first.lsn, np.uint64)
        self.xid = np.full(count, entry.xid, np.uint32)
        self.time = np.full(count, entry.last_time, np.int64)
        self.ordinal = before.astype(np.uint64) + np.uint64(entry.first.ordinal)

    def _transactions(self, entry: Entry, before: Indices) -> None:
        """The columns of whole transactions. See the class for an example."""
        begins = np.flatnonzero(self.kinds == _BEGIN)
        # Number 0 is for schemas and non-transactional messages before the first transaction.
        number = np.cumsum(self.kinds == _BEGIN)
        lsns = self.number(begins, 1, ">u8").astype(np.uint64)
        times = self.number(begins, 9, ">i8").astype(np.int64)
        xids = self.number(begins, 17, ">u4").astype(np.uint32)
        self.lsn = np.concatenate([[np.uint64(entry.first.lsn)], lsns])[number]
        self.time = np.concatenate([[np.int64(entry.first_time)], times])[number]
        self.xid = np.concatenate([[np.uint32(0)], xids])[number]
        opened = np.concatenate([[0], before[begins]])[number]
        self.ordinal = (before - opened).astype(np.uint64)

    def _read_logical(self) -> tuple[pa.StringArray, pa.BinaryArray]:
        """Prefixes and contents of the logical messages.

        A message is 'M', 1 byte of flags, 8 of LSN, the prefix, a NUL, 4 bytes of length and the
        content. Arrow reads both columns from the entry's own bytes: the borders of the parts are
        offsets of one binary array, of which every fourth value is a prefix.

            bytes     M f LSN | outbox | \\0 length | {"id": 1} | M f LSN | ...
            value               0        1            2           3
        """
        if not len(self.logical):
            return pa.array([], pa.string()), pa.array([], pa.binary())
        start = self.starts[self.logical] + 10
        ends = self.starts[self.logical + 1]
        zeros = np.flatnonzero(self.body.bytes == 0)
        at = np.searchsorted(zeros, start)
        if (at >= len(zeros)).any():
            raise MalformedError("the prefix of a logical message has no terminating NUL")
        stop = zeros[at]
        content = stop + 5
        size = self.body.number(stop + 1, ">i4").astype(np.int64)
        if (content + size != ends).any() or (size < 0).any():
            raise MalformedError("the content of a logical message does not fill its message")
        borders = np.stack([start, stop, content, ends], axis=1).astype(np.int32).reshape(-1)
        parts = pa.Array.from_buffers(
            pa.binary(),
            len(borders) - 1,
            [None, pa.py_buffer(borders), pa.py_buffer(self.body.data)],
        )
        at_prefix = np.arange(0, len(borders), 4, dtype=np.int32)
        try:
            prefixes = parts.take(pa.array(at_prefix)).cast(pa.string())
        except pa.ArrowInvalid as error:
            raise MalformedError("the prefix of a logical message is not UTF-8") from error
        return prefixes, parts.take(pa.array(at_prefix + 2))

    def logical_with(self, prefixes: frozenset[str]) -> list[int]:
        """The indices of the transactional logical messages with one of these prefixes."""
        if not len(self.logical):
            return []
        matches = pc.is_in(self.prefixes, pa.array(sorted(prefixes), pa.string()))
        inside = self.byte(self.logical, 1) != 0
        rows: list[int] = np.flatnonzero(matches.to_numpy(zero_copy_only=False) & inside).tolist()
        return rows

    def logical_at(self, row: int) -> tuple[str, bytes]:
        """Prefix and content of one logical message."""
        return self.prefixes[row].as_py(), self.contents[row].as_py()

    def raw(self, index: int) -> bytes:
        """The bytes of one message."""
        return self.body.data[self.starts[index] : self.starts[index + 1]]

    def number(self, indices: Indices, at: int, kind: str) -> NDArray[np.int64]:
        """The big-endian number at byte `at` of each of these messages."""
        return self.body.number(self.starts[indices] + at, kind)

    def byte(self, indices: Indices, at: int) -> NDArray[np.uint8]:
        """Byte `at` of each of these messages."""
        return self.body.byte(self.starts[indices] + at)

    def positions(self, indices: Indices) -> NDArray[np.void]:
        """The positions of these messages as one sortable array; index -1 is position zero."""
        known = np.maximum(indices, 0)
        positions = sortable(self.lsn[known], self.ordinal[known])
        positions[indices < 0] = 0
        return positions

    def group(self, op: Op, relation: Relation | None, indices: Indices) -> Group:
        """A group of these messages, without row images."""
        return Group(
            op=op,
            relation=relation,
            lsn=self.lsn[indices],
            ordinal=self.ordinal[indices],
            xid=self.xid[indices],
            committed_at=self.time[indices] + _EPOCH_MICROS,
        )
