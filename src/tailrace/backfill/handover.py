"""Rows of a chunk meet the stream: which of them are still right at a place in it.

A chunk may stand anywhere behind everything it sees. In front of that place stand changes it does
not see, and every one of them is newer than the chunk's row: the row is left out, for the change
has been delivered. It is not positions that tell, as commits become visible in another order than
they stand in the log, but the transactions the chunk's snapshot sees.

Rows of a table without a key are told apart by all their values. A row that was deleted in front of
the chunk is left out as often as it was deleted before it was there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Op
from tailrace.decode.group import Group
from tailrace.decode.table_changes import table_changes
from tailrace.position import READS, Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace.backfill.spool import Page, Spool
    from tailrace.decode.group import Image
    from tailrace.log.reader import Log
    from tailrace.schema import Relation

_CHUNK_BITS = 36


def place(chunk: Page, upto: Position) -> Position:
    """Where a chunk's last row stands, if it comes right behind `upto`: before any later commit."""
    return Position(Lsn(max(upto.lsn, chunk.lsn - 1)), _ordinal(chunk.number + 1) - 1)


def _ordinal(number: int) -> int:
    return READS | number << _CHUNK_BITS


def handed_over(spool: Spool, chunk: Page, log: Log, upto: Position) -> Iterator[Group]:
    """The rows of a chunk that are right at a place behind everything it sees."""
    passed: _Passed = _Keys(chunk) if chunk.key else _Counts(chunk)
    for group in unseen(log, chunk, upto):
        passed.note(group)
    first = _ordinal(chunk.number)
    taken_us = int(chunk.taken_at.timestamp() * 1_000_000)
    for count, image in spool.read(chunk):
        group = Group(
            op=Op.READ,
            relation=chunk.table.relation,
            types=chunk.table.types,
            lsn=np.full(count, upto.lsn, np.uint64),
            ordinal=np.arange(first, first + count, dtype=np.uint64),
            xid=np.zeros(count, np.uint32),
            committed_at=np.full(count, taken_us, np.int64),
            after=image,
        )
        first += count
        kept = passed.kept(image, count)
        yield group if kept.all() else group.take(np.flatnonzero(kept))


def unseen(log: Log, chunk: Page, upto: Position) -> Iterator[Group]:
    """The changes of a chunk's table up to a place that the chunk does not see."""
    relation = chunk.table.relation
    for group in table_changes(log, relation, chunk.since, upto):
        hidden = np.flatnonzero(~chunk.visibility.sees(group.xid))
        if len(hidden):
            yield group if len(hidden) == len(group) else group.take(hidden)


class _Passed(ABC):
    """What the stream has passed of a chunk."""

    def __init__(self, chunk: Page) -> None:
        self._names = chunk.key or tuple(each.name for each in chunk.table.relation.columns)
        self._at = _places(chunk.table.relation, self._names)
        self._all = False

    def note(self, group: Group) -> None:
        """A change that the chunk does not see."""
        assert group.relation is not None
        at = _places(group.relation, self._names)
        if group.op is Op.TRUNCATE or at is None:
            # Without its key the change may be of any row. A backfill begins anew with a new key.
            self._all = True
            return
        self._note(group, at)

    def kept(self, image: Image, count: int) -> NDArray[np.bool_]:
        """Which of these rows are right."""
        if self._all:
            return np.zeros(count, np.bool_)
        assert self._at is not None
        return self._kept(values(image, self._at, count))

    @abstractmethod
    def _note(self, group: Group, at: Sequence[int]) -> None: ...

    @abstractmethod
    def _kept(self, found: pa.BinaryArray) -> NDArray[np.bool_]: ...


class _Keys(_Passed):
    """By key: whatever has happened to it."""

    def __init__(self, chunk: Page) -> None:
        super().__init__(chunk)
        self._seen: list[pa.BinaryArray] = []

    def _note(self, group: Group, at: Sequence[int]) -> None:
        for image in (group.before, group.after):
            if image is not None and all(image[each] is not None for each in at):
                self._seen.append(values(image, at, len(group)))

    def _kept(self, found: pa.BinaryArray) -> NDArray[np.bool_]:
        if not self._seen:
            return np.ones(len(found), np.bool_)
        lost = pc.is_in(found, pa.concat_arrays(self._seen))
        return ~np.asarray(lost.to_numpy(zero_copy_only=False))


class _Counts(_Passed):
    """By all values: how often such a row was deleted when there was none."""

    def __init__(self, chunk: Page) -> None:
        super().__init__(chunk)
        self._noted: list[tuple[Group, int, pa.BinaryArray]] = []
        self._missed: dict[bytes, int] | None = None

    def _note(self, group: Group, at: Sequence[int]) -> None:
        for image, step in ((group.before, -1), (group.after, 1)):
            if image is not None:
                self._noted.append((group, step, values(image, at, len(group))))

    def _kept(self, found: pa.BinaryArray) -> NDArray[np.bool_]:
        if self._missed is None:
            self._missed = self._count()
        kept = np.ones(len(found), np.bool_)
        if self._missed:
            hit = pc.is_in(found, pa.array(list(self._missed), pa.binary()))
            for row in np.flatnonzero(hit.to_numpy(zero_copy_only=False)).tolist():
                value = found[row].as_py()
                if self._missed[value]:
                    self._missed[value] -= 1
                    kept[row] = False
        return kept

    def _count(self) -> dict[bytes, int]:
        """The deepest that the count of each row has fallen."""
        if not self._noted:
            return {}
        coded = pa.concat_arrays([found for *_, found in self._noted]).dictionary_encode()
        codes = coded.indices.to_numpy()
        lsn = np.concatenate([group.lsn for group, *_ in self._noted])
        ordinal = np.concatenate([group.ordinal for group, *_ in self._noted])
        step = np.concatenate([np.full(len(group), by) for group, by, _ in self._noted])
        order = np.lexsort((step, ordinal, lsn, codes))
        codes, step = codes[order], step[order]
        starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
        sums = np.cumsum(step)
        before = np.r_[0, sums[starts[1:] - 1]]
        lowest = np.minimum.reduceat(sums, starts) - before
        return {
            coded.dictionary[int(code)].as_py(): -int(low)
            for code, low in zip(codes[starts], lowest, strict=True)
            if low < 0
        }


def _places(relation: Relation, names: Sequence[str]) -> list[int] | None:
    found = [column.name for column in relation.columns]
    if any(name not in found for name in names):
        return None
    return [found.index(name) for name in names]


def values(image: Image, at: Sequence[int], count: int) -> pa.BinaryArray:
    """Some columns of each row as one value that no other row has; NULL is not empty."""
    parts: list[pa.Array] = []
    for each in at:
        cells = image[each]
        found = pa.nulls(count, pa.binary()) if cells is None else cells.values
        lengths = pc.fill_null(pc.binary_length(found).cast(pa.string()), "").cast(pa.binary())
        parts += [lengths, pc.fill_null(found, b"")]
    if not parts:
        return pa.repeat(pa.scalar(b"", pa.binary()), count)
    return pc.binary_join_element_wise(*parts, pa.scalar(b":", pa.binary()))
