"""Messages for benchmarks that need no log: columns of `tailrace.message.MESSAGES`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.message import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable


def numbered(
    numbers: range,
    *,
    payload: Callable[[int], bytes],
    destination: Callable[[int], bytes],
    keys: int,
    step: int = 1,
) -> pa.RecordBatch:
    """A message for each number, with one of `keys` keys, in transactions `step` bytes apart."""
    count, lsns = len(numbers), [step * (number + 1) for number in numbers]
    columns = {
        "destination": map(destination, numbers),
        "id": (b"%016x-0" % lsn for lsn in lsns),
        "key": (b"%d" % (number % keys) for number in numbers),
        "payload": map(payload, numbers),
        "lsn": lsns,
        "scope": [1] * count,
    }
    return pa.RecordBatch.from_arrays(
        [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else _nothing(field, count)
            for field in MESSAGES
        ],
        schema=MESSAGES,
    )


def _nothing(field: pa.Field, count: int) -> pa.Array:
    return pa.nulls(count, field.type) if field.nullable else pa.array([0] * count, field.type)


def text(number: int) -> bytes:
    """A JSON document of about 200 bytes."""
    return b'{"id": %d, "text": "%s"}' % (number, b"x" * 176)
