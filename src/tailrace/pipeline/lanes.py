"""Lanes: which delivery a change belongs to, so that the order of every key is kept.

A change goes to the lane its key's hash names. A change of a key must come after everything of the
old key and before everything of the new one, so it joins the two lanes for its micro-batch; a
TRUNCATE joins them all. Changes of tables without a key keep the order of their table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.change import Op
from tailrace.decode import columns
from tailrace.errors import ConfigError
from tailrace.schema import ReplicaIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.decode.group import Group, Image
    from tailrace.schema import Relation

    Hashes = NDArray[np.uint64]

_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Lanes:
    """The lanes of one micro-batch."""

    def __init__(self, count: int, key: Sequence[str] = ()) -> None:
        self._count = count
        self._key = tuple(key)
        self._joined = np.arange(count)

    def join(self, groups: Iterable[Group]) -> None:
        """Join what these changes tie together; all of a batch come here before any `of`."""
        for group in groups:
            if group.op is Op.TRUNCATE:
                self._joined[:] = 0
            elif group.op is Op.UPDATE and group.before is not None:
                old, new = self._numbers(group, group.before), self._numbers(group, group.after)
                for pair in np.unique(np.stack([old, new]), axis=1).T.tolist():
                    self._unite(*pair)

    def of(self, group: Group) -> NDArray[np.int32]:
        """The lane of each change."""
        image = group.before if group.after is None else group.after
        return self._joined[self._numbers(group, image)].astype(np.int32)

    def _unite(self, one: int, other: int) -> None:
        low, high = sorted((int(self._joined[one]), int(self._joined[other])))
        if low != high:
            self._joined[self._joined == high] = low

    def _numbers(self, group: Group, image: Image | None) -> NDArray[np.int64]:
        hashes = np.full(len(group), _seed(group), np.uint64)
        if image is not None and group.relation is not None:
            for at in self._key_columns(group.relation):
                found = image[at]
                if found is None and group.after is not None:
                    # A key that is not in the old image has not changed.
                    found = group.after[at]
                if found is not None:
                    hashes = (hashes ^ hash_of(found.values)) * _PRIME
        hashes ^= hashes >> np.uint64(32)
        return ((hashes * _MIX) >> np.uint64(33)).astype(np.int64) % self._count

    def _key_columns(self, relation: Relation) -> list[int]:
        names = [column.name for column in relation.columns]
        if not self._key:
            full = relation.replica_identity is ReplicaIdentity.FULL
            return [at for at, column in enumerate(relation.columns) if column.key and not full]
        missing = [name for name in self._key if name not in names]
        if missing:
            raise ConfigError(f"{relation.qualified_name} has no column {missing[0]} for its lanes")
        return [names.index(name) for name in self._key]


def _seed(group: Group) -> np.uint64:
    name = "" if group.relation is None else f"{group.relation.namespace}\0{group.relation.name}"
    seed = np.uint64(0xCBF29CE484222325)
    with np.errstate(over="ignore"):
        for byte in name.encode():
            seed = (seed ^ np.uint64(byte)) * _PRIME
    return seed


def hash_of(values: pa.BinaryArray) -> Hashes:
    """A hash of each value that is the same in every process; NULL has one of its own."""
    values = columns.tidy(values)
    offsets = columns.offsets(values).astype(np.int64)
    lengths = np.diff(offsets)
    data = columns.content(values)
    powers = np.cumprod(np.full(int(lengths.max(initial=0)), _PRIME, np.uint64))
    within = np.arange(len(data)) - np.repeat(offsets[:-1], lengths)
    terms = (data.astype(np.uint64) + np.uint64(1)) * powers[within]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
    hashes: Hashes = sums[offsets[1:]] - sums[offsets[:-1]]
    hashes ^= lengths.astype(np.uint64) * _MIX
    hashes[~columns.valid(values)] = _MIX
    return hashes
