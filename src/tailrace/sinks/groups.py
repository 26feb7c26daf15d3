"""Which messages must stay in order: those of one key of one table, and what ties keys together.

A message waits for every earlier message of its key that is not accepted, and for those of its old
key if an update changed it. A message without a key, such as a TRUNCATE, waits for all earlier ones
of its table, and all later ones wait for it.

Keys are compared by 64-bit hashes. Two keys with the same hash wait for each other, which costs
time and never order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.decode import columns
from tailrace.decode.hashes import PRIME, hash_of

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.decode.hashes import Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of each message of a batch, as hashes."""

    scope: Hashes
    """Of its table."""
    own: Hashes
    """Of its key; of its table if it has no key."""
    former: Hashes
    """Of its old key; equal to `own` unless an update changed the key."""
    whole: NDArray[np.bool_]
    """Whether it concerns its whole table, because it has no key."""

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
    return Groups(scope=scope, own=own, former=former, whole=~columns.valid(key))


def _within(scope: Hashes, keys: pa.BinaryArray, otherwise: Hashes) -> Hashes:
    """The hash of each key in its table; of something else where the key is null."""
    if keys.null_count == len(keys):
        return otherwise
    return np.where(columns.valid(keys), (scope ^ hash_of(keys)) * PRIME, otherwise)
