"""A batch: a run of received messages as columns.

Reads kinds, lengths, LSNs and times of thousands of messages at once. Numbers come from a numpy
view with one number per byte of the buffer (strides of 1): gathering from that unaligned view is
several times faster than combining single bytes. Parts of a batch share its memory; bytes are
copied once, when an entry is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]

_BEGIN_BYTES, _COMMIT_BYTES, _MESSAGE_BYTES, _TRUNCATE_BYTES = 21, 26, 15, 6
_B, _C, _M, _O, _T, _R, _Y = (ord(letter) for letter in "BCMOTRY")
_COUNTS_ONE = np.zeros(256, np.int64)
_COUNTS_ONE[[ord("I"), ord("U"), ord("D"), _M]] = 1
_SCHEMA = np.zeros(256, np.bool_)
_SCHEMA[[_R, _Y]] = True
# Stream Abort, Commit Prepared and Rollback Prepared. Some releases of PostgreSQL 18 send
# them although neither streaming nor two_phase was requested, for transactions they have not sent.
_IGNORED = np.zeros(256, np.bool_)
_IGNORED[[ord("A"), ord("K"), ord("r")]] = True


class Batch:
    """Consecutive messages in `data`, the first at `offsets[0]`."""

    __slots__ = ("begins", "commits", "data", "kinds", "loose", "offsets")

    data: NDArray[np.uint8]
    offsets: Indices
    """Where each message begins, and where the last one ends."""
    kinds: NDArray[np.uint8]
    begins: Indices
    commits: Indices
    loose: Indices
    """Non-transactional messages of pg_logical_emit_message, outside any transaction."""

    @classmethod
    def of(cls, data: bytes | bytearray, ends: NDArray[np.uint32]) -> Self:
        """All messages of a buffer. Checks every length that later reads rely on."""
        self = cls()
        self.data = np.frombuffer(data, np.uint8)
        self.offsets = np.zeros(len(ends) + 1, np.int64)
        self.offsets[1:] = ends
        lengths = np.diff(self.offsets)
        if (lengths < 1).any():
            raise MalformedError("PostgreSQL sent an empty logical replication message")
        self.kinds = self.data[self.offsets[:-1]]
        self.begins = self._of_kind(_B, lengths, _BEGIN_BYTES, exact=True)
        self.commits = self._of_kind(_C, lengths, _COMMIT_BYTES, exact=True)
        self._of_kind(_T, lengths, _TRUNCATE_BYTES)
        messages = self._of_kind(_M, lengths, _MESSAGE_BYTES)
        self.loose = messages[self.data[self.offsets[messages] + 1] == 0]
        return self

    def _of_kind(
        self, kind: int, lengths: Indices, min_bytes: int, *, exact: bool = False
    ) -> Indices:
        messages = np.flatnonzero(self.kinds == kind)
        wrong = lengths[messages] != min_bytes if exact else lengths[messages] < min_bytes
        if wrong.any():
            length = int(lengths[messages][wrong][0])
            expected = f"{min_bytes} bytes" if exact else f"at least {min_bytes} bytes"
            raise MalformedError(f"a {chr(kind)} message must have {expected}, got {length}")
        return messages

    def __len__(self) -> int:
        return len(self.kinds)

    def part(self, start: int, stop: int) -> Batch:
        """The messages from `start` up to `stop`, over the same memory."""
        part = Batch()
        part.data = self.data
        part.offsets = self.offsets[start : stop + 1]
        part.kinds = self.kinds[start:stop]
        part.begins = _between(self.begins, start, stop)
        part.commits = _between(self.commits, start, stop)
        part.loose = _between(self.loose, start, stop)
        return part

    def number(self, messages: Indices, at: int, kind: str = ">u8") -> NDArray[np.int64]:
        """The big-endian number at byte `at` of each of these messages.

        `number(batch.begins, 1)` reads the commit LSN of every BEGIN: 'B', then 8 bytes of LSN.
        """
        dtype = np.dtype(kind)
        count = max(len(self.data) - dtype.itemsize + 1, 0)
        everywhere: NDArray[np.int64] = np.ndarray((count,), dtype, self.data.data, strides=(1,))
        return everywhere[self.offsets[messages] + at]

    def change_counts(self) -> NDArray[np.int64]:
        """How many changes each message counts: 1 per row, 1 per table of a TRUNCATE, else 0."""
        counts = _COUNTS_ONE[self.kinds]
        truncates = np.flatnonzero(self.kinds == _T)
        if len(truncates):
            counts[truncates] = self.number(truncates, 1, ">u4")
        return counts

    def ignored(self) -> NDArray[np.bool_]:
        """Which messages are about transactions that were not sent."""
        return _IGNORED[self.kinds]

    def only(self, mask: NDArray[np.bool_]) -> list[bytes]:
        """The messages of a mask."""
        return [
            self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()
            for index in np.flatnonzero(mask).tolist()
        ]

    def schemas(self) -> list[bytes]:
        """The Relation and Type messages."""
        return self.only(_SCHEMA[self.kinds])

    def origin(self) -> list[bytes]:
        """The Origin message, if there is one."""
        return self.only(self.kinds == _O)

    def packed(self, before: list[bytes]) -> tuple[NDArray[np.uint32], bytes, int]:
        """Offsets and body of an entry, and its number of schemas. `before` precedes the batch."""
        low, high = int(self.offsets[0]), int(self.offsets[-1])
        schemas = int(_SCHEMA[self.kinds].sum())
        if not before:
            return (self.offsets - low).astype(np.uint32), self.data[low:high].tobytes(), schemas
        head = np.cumsum([0, *map(len, before)])
        offsets = np.concatenate([head[:-1], self.offsets - low + head[-1]]).astype(np.uint32)
        schemas += sum(message[:1] in (b"R", b"Y") for message in before)
        return offsets, b"".join([*before, self.data[low:high].tobytes()]), schemas


def _between(indices: Indices, start: int, stop: int) -> Indices:
    low, high = np.searchsorted(indices, (start, stop))
    return indices[low:high] - start
