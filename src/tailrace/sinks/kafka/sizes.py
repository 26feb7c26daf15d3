"""Sizes of records, as librdkafka and brokers compare them with their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import headers

if TYPE_CHECKING:
    import numpy.typing as npt

ID_HEADER = "tailrace-id"
BATCH_BYTES = 48
"""What a batch of one record has beyond `record_bytes`, at most: a broker compares batches."""
_RECORD_BYTES = 36
"""What librdkafka adds to the sizes of key, value and headers of a record."""


def record_bytes(batch: pa.RecordBatch, *, named: bool) -> npt.NDArray[np.int64]:
    """The sizes that librdkafka compares with `message.max.bytes`; `named`: with the ids."""
    sizes = _RECORD_BYTES + _lengths(batch.column("payload")) + _lengths(batch.column("key"))
    # A name takes up to two bytes for its length, a value up to four.
    sizes += headers.sizes(batch.column("headers"), each=6)
    if named:
        ids = _lengths(batch.column("id"))
        # Both lengths are variable integers; an id has fewer than 8,192 bytes.
        sizes += len(ID_HEADER) + 1 + ids + np.where(ids < 64, 1, 2)
    return sizes


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    found = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.int64)


def compressed_bytes(size: int, value: bytes, codec: str) -> int:
    """The size of a record when its value is compressed; `size` without compression.

    >>> [compressed_bytes(1036, b"x" * 1000, codec) > 200 for codec in ("none", "lz4")]
    [True, False]
    """
    if codec == "none":
        return size
    compressed = len(pa.compress(value, codec=codec, asbytes=True))
    # librdkafka compresses with its own libraries, which may need a little more.
    return size - len(value) + min(len(value), compressed + compressed // 64)
