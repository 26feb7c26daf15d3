"""Lanes: which of several parallel deliveries a change belongs to, so that every key keeps its
order.

The hash of a change's key chooses its lane, or that of its group if the pipeline has `group`.
Tables without a key have one lane each. Two operations tie lanes together for the micro-batch that
contains them:

* An update that changes a key must follow all changes of the old key and precede all changes of the
  new one. It joins the two lanes: both are delivered as the lower one. The old key must be known,
  so a `key` of other columns needs them in the table's replica identity.
* A TRUNCATE must follow and precede everything in its table. It joins all lanes.

Example with four lanes. By their hashes the keys 1, 3 and 4 belong to lane 3, the keys 2 and 5 to
lane 0, and the keys 6 and 7 to lane 2:

| micro-batch                         | lane 0                           | lane 2 | lane 3     |
|-------------------------------------|----------------------------------|--------|------------|
| inserts of 1 to 7                   | 2, 5                             | 6, 7   | 1, 3, 4    |
| the same, then `1 → 2`              | 1, 2, 3, 4, 5, then the update   | 6, 7   |            |
| the same, then TRUNCATE             | 1 to 7, then the truncate        |        |            |

In the second batch lane 3 is delivered as lane 0, the keys 3 and 4 included: lanes are joined, not
keys. The next batch starts with four lanes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.change import Op
from tailrace.decode.hashes import MIX, PRIME, hash_of, hash_of_table
from tailrace.errors import ConfigError
from tailrace.schema import ReplicaIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tailrace.decode.group import Group, Image
    from tailrace.schema import Relation


class Lanes:
    """The lanes of one micro-batch. `key` names the columns to hash instead of the table's key.

    If `grouped`, they are the setting `group`: equal values of several tables share a lane.
    """

    def __init__(self, count: int, key: Sequence[str] = (), *, grouped: bool = False) -> None:
        self._count = count
        self._key = tuple(key)
        self._grouped = grouped
        self._delivered_as = np.arange(count)
        """For each lane the lane that it is joined to: itself at first."""

    def join(self, groups: Iterable[Group]) -> None:
        """Join the lanes that these changes tie together.

        Call it with all changes of a micro-batch before the first call of `of`.
        """
        for group in groups:
            self._check_known(group)
            if group.op is Op.TRUNCATE:
                self._delivered_as[:] = 0
            elif group.op is Op.UPDATE and group.before is not None:
                old, new = self._hashed(group, group.before), self._hashed(group, group.after)
                # At most count x count distinct pairs, however many updates there are.
                for pair in np.unique(np.stack([old, new]), axis=1).T.tolist():
                    self._unite(*pair)

    def of(self, group: Group) -> NDArray[np.int32]:
        """The lane of each change."""
        image = group.before if group.after is None else group.after
        return self._delivered_as[self._hashed(group, image)].astype(np.int32)

    def _unite(self, one: int, other: int) -> None:
        low, high = sorted((int(self._delivered_as[one]), int(self._delivered_as[other])))
        if low != high:
            self._delivered_as[self._delivered_as == high] = low

    def _hashed(self, group: Group, image: Image | None) -> NDArray[np.int64]:
        """The lane of each change by the hash of its key, before lanes are joined."""
        table = None if self._grouped else group.relation
        hashes = np.full(len(group), hash_of_table(table), np.uint64)
        if image is not None and group.relation is not None:
            for at in self._key_columns(group.relation):
                cells = image[at]
                if cells is not None:
                    hashes = (hashes ^ hash_of(cells.values)) * PRIME
        hashes ^= hashes >> np.uint64(32)
        return ((hashes * MIX) >> np.uint64(33)).astype(np.int64) % self._count

    def _check_known(self, group: Group) -> None:
        """Fail if the old values of the key are not sent: the old lane would be unknown."""
        relation = group.relation
        if not self._key or relation is None or group.op not in {Op.UPDATE, Op.DELETE}:
            return
        if relation.replica_identity is ReplicaIdentity.FULL:
            return
        columns, table = relation.columns, relation.qualified_name
        unknown = [columns[at].name for at in self._key_columns(relation) if not columns[at].key]
        if unknown:
            raise ConfigError(
                f"with several lanes, `{self._setting}` must be in the replica identity of {table}"
                f": PostgreSQL does not send the old {unknown[0]}",
                hint=f"ALTER TABLE {table} REPLICA IDENTITY FULL, or lanes: 1",
            )

    @property
    def _setting(self) -> str:
        return "group" if self._grouped else "key"

    def _key_columns(self, relation: Relation) -> list[int]:
        names = [column.name for column in relation.columns]
        if not self._key:
            full = relation.replica_identity is ReplicaIdentity.FULL
            return [at for at, column in enumerate(relation.columns) if column.key and not full]
        missing = [name for name in self._key if name not in names]
        if missing:
            raise ConfigError(
                f"{relation.qualified_name} has no column {missing[0]}, which `{self._setting}` "
                "names for lanes"
            )
        return [names.index(name) for name in self._key]
