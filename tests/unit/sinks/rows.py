"""Messages by the handful, for the tests of sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.message import MESSAGES
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST_LSN = 0x16B3748


def position(number: int, *, per: int = 3) -> Position:
    """Where the n-th message stands; `per` messages make a transaction."""
    return Position(Lsn(FIRST_LSN + number // per * 56), number % per)


def message_id(number: int, *, per: int = 3) -> bytes:
    """The id of the n-th message, in the form the bridge's consumers know."""
    at = position(number, per=per)
    return f"{at.lsn:x}-my-orders-insert-{at.ordinal}".encode()


def payload(number: int, size: int = 0) -> bytes:
    """Bytes that look like the protocol's own, and say which message they are."""
    return b"%d\r\nMSG + OK\r\n\x00\xff" % number + b"x" * size


def rows(
    numbers: Iterable[int],
    *,
    per: int = 3,
    destination: bytes = b"cdc.orders.insert",
    size: int = 0,
) -> pa.RecordBatch:
    """The messages of these numbers."""
    chosen = list(numbers)
    places = [position(number, per=per) for number in chosen]
    columns = [
        pa.array([destination] * len(chosen), pa.binary()),
        pa.array([message_id(number, per=per) for number in chosen], pa.binary()),
        pa.array([None] * len(chosen), pa.binary()),
        pa.array([payload(number, size) for number in chosen], pa.binary()),
        pa.array([int(place.lsn) for place in places], pa.uint64()),
        pa.array([place.ordinal for place in places], pa.uint64()),
        pa.array([0] * len(chosen), pa.int64()),
    ]
    return pa.record_batch(columns, schema=MESSAGES)
