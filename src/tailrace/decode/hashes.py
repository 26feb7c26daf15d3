"""Hashes of columns that are the same in every process, unlike Python's `hash`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tailrace.decode import columns

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.schema import Relation

    Hashes = NDArray[np.uint64]

PRIME = np.uint64(0x100000001B3)
MIX = np.uint64(0x9E3779B97F4A7C15)


def hash_of_table(relation: Relation | None) -> np.uint64:
    """The hash of a table's name; of an empty name for logical messages."""
    return hash_of_name("" if relation is None else f"{relation.namespace}\0{relation.name}")


@lru_cache(maxsize=10_000)
def hash_of_name(name: str) -> np.uint64:
    """FNV-1a of a name.

    >>> int(hash_of_name("public\\0orders"))
    10993473213877541777
    """
    seed = np.uint64(0xCBF29CE484222325)
    with np.errstate(over="ignore"):
        for byte in name.encode():
            seed = (seed ^ np.uint64(byte)) * PRIME
    return seed


def hash_of(values: pa.BinaryArray) -> Hashes:
    """A hash of each value.

    The hash of bytes b₀ b₁ … is Σ (bᵢ + 1) · PRIME^(i+1), mixed with the length. Sums can be taken
    over a whole column with one cumulative sum; a recurrence such as FNV cannot. NULL has a hash
    of its own.

    >>> import pyarrow as pa
    >>> hash_of(pa.array([b"a", None, b"a"], pa.binary())).tolist()
    [11400611465230211731, 11400714819323198485, 11400611465230211731]
    """
    values = columns.tidy(values)
    offsets = columns.offsets(values).astype(np.int64)
    lengths = np.diff(offsets)
    data = columns.content(values)
    powers = np.cumprod(np.full(int(lengths.max(initial=0)), PRIME, np.uint64))
    within = np.arange(len(data)) - np.repeat(offsets[:-1], lengths)
    terms = (data.astype(np.uint64) + np.uint64(1)) * powers[within]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
    hashes: Hashes = sums[offsets[1:]] - sums[offsets[:-1]]
    hashes ^= lengths.astype(np.uint64) * MIX
    hashes[~columns.valid(values)] = MIX
    return hashes
