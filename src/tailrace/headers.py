"""Headers of messages: the column `headers` of `tailrace.message.MESSAGES`.

A pipeline computes them with SQL expressions. Their values are text without control characters, and
a header whose expression is NULL is left out. Sinks write the column as their protocol needs it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.message import HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Entry = Callable[[pa.BinaryArray, pa.BinaryArray], Sequence[pa.Array | pa.Scalar]]

_EMPTY = pa.scalar(b"", pa.binary())


def none(count: int) -> pa.MapArray:
    """The column of messages without headers."""
    return pa.nulls(count, HEADERS)


def of_texts(values: pa.MapArray) -> pa.MapArray:
    """The column, from names and values as strings."""
    names, texts = values.keys.cast(pa.binary()), values.items.cast(pa.binary())
    return pa.MapArray.from_arrays(values.offsets, names, texts)


def joined(headers: pa.MapArray, entry: Entry) -> pa.BinaryArray | None:
    """The headers of each message as bytes, one `entry` after another; None if there are none.

    `entry` returns the parts of an entry, from the columns of names and of values.
    """
    if headers.null_count == len(headers):
        return None
    start, end = headers.offsets[0].as_py(), headers.offsets[-1].as_py()
    names, values = headers.keys[start:end], headers.items[start:end]
    parts = pc.binary_join_element_wise(*entry(names, values), _EMPTY)
    offsets = pc.subtract(headers.offsets, start)
    made = pc.binary_join(pa.ListArray.from_arrays(offsets, parts), _EMPTY)
    return made if headers.null_count == 0 else pc.if_else(headers.is_valid(), made, _EMPTY)


def sizes(headers: pa.MapArray, *, each: int = 0) -> NDArray[np.int64]:
    """Bytes of the names and values of each message, and so many `each` header adds."""
    if headers.null_count == len(headers):
        return np.zeros(len(headers), np.int64)
    lengths = [pc.binary_length(part).to_numpy() for part in (headers.keys, headers.items)]
    ends = np.concatenate([[0], np.cumsum(lengths[0] + lengths[1] + each, dtype=np.int64)])
    offsets = headers.offsets.to_numpy()
    found: NDArray[np.int64] = ends[offsets[1:]] - ends[offsets[:-1]]
    return found


def dumped(headers: Sequence[tuple[bytes, bytes]] | None) -> str | None:
    """The headers of one message as a JSON object, for a store; None without headers."""
    if not headers:
        return None
    return json.dumps({name.decode(): value.decode() for name, value in headers})


def loaded(text: str | None) -> dict[str, str]:
    """The headers out of a store."""
    return {} if text is None else dict(json.loads(text))


def pairs(headers: pa.MapArray) -> list[list[tuple[bytes, bytes]]]:
    """The names and values of each message, for clients that take them one by one."""
    if headers.null_count == len(headers):
        return [[]] * len(headers)
    return [each or [] for each in headers.to_pylist()]
