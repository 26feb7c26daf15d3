"""Which messages must stay in order: those of one key of one table, and what ties keys together.

A message waits for every earlier message of its key that is not accepted, and for those of its old
key if an update changed it. A message without a key, such as a TRUNCATE, waits for all earlier ones
of its table, and all later ones wait for it.

A pipeline with `group` says itself what must stay in order: messages of the same group, whichever
table they are of, in place of those of the same key. A message whose group is NULL has its key.

Keys are compared by 64-bit hashes. Two keys with the same hash wait for each other, which costs
time and never order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tailrace.decode import columns
from tailrace.decode.hashes import PRIME, hash_of, hash_of_name

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.decode.hashes import Hashes

_OF_GROUPS = hash_of_name("")
"""The scope of groups, which are of all tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of each message of a batch, as hashes."""

    scope: Hashes
    """Of its table."""
    own: Hashes
    """Of its group or its key; of its table if it has neither."""
    former: Hashes
    """Of its old group or key; equal to `own` unless an update changed it."""
    whole: NDArray[np.bool_]
    """Whether it concerns its whole table, because it has neither group nor key."""

    def take(self, rows: NDArray[np.int64]) -> Groups:
        """Those of these messages."""
        return Groups(
            scope=self.scope[rows],
            own=self.own[rows],
            former=self.former[rows],
            whole=self.whole[rows],
        )

    def slice(self, first: int, count: int) -> Groups:
        """Those of some messages in a row."""
        rows = slice(first, first + count)
        return Groups(
            scope=self.scope[rows],
            own=self.own[rows],
            former=self.former[rows],
            whole=self.whole[rows],
        )


def groups_of(batch: pa.RecordBatch) -> Groups:
    """The groups of a batch of MESSAGES."""
    scope: Hashes = batch.column("scope").to_numpy()
    key = batch.column("key")
    own = _within(scope, key, scope)
    former = _within(scope, batch.column("former"), own)
    whole = ~columns.valid(key)
    named = batch.column("group")
    if named.null_count < len(named):
        groups = np.full(len(named), _OF_GROUPS, np.uint64)
        name = pc.struct_field(named, "own")
        own = _within(groups, name, own)
        former = _within(groups, pc.struct_field(named, "former"), former)
        whole &= ~columns.valid(name)
    return Groups(scope=scope, own=own, former=former, whole=whole)


def order_keys(batch: pa.RecordBatch) -> pa.BinaryArray:
    """What a destination that orders by a key of its own gets: the group, or the key without one.

    Null for a message with neither.
    """
    key, named = batch.column("key"), batch.column("group")
    if named.null_count == len(named):
        return key
    return pc.coalesce(pc.struct_field(named, "own"), key)


def _within(scope: Hashes, keys: pa.BinaryArray, otherwise: Hashes) -> Hashes:
    """The hash of each key in its table; of something else where the key is null."""
    if keys.null_count == len(keys):
        return otherwise
    return np.where(columns.valid(keys), (scope ^ hash_of(keys)) * PRIME, otherwise)
