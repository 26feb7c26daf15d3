"""Numbered messages for the tests of sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace import headers
from tailrace.message import GROUP, MESSAGES
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.sinks.contract import Sink

Group = tuple[bytes | None, bytes | None]
FIRST_LSN = 0x16B3748


def position(number: int, *, per: int = 3) -> Position:
    """The position of message `number`; each transaction has `per` messages."""
    return Position(Lsn(FIRST_LSN + number // per * 56), number % per)


def message_id(number: int, *, per: int = 3) -> bytes:
    """The id of message `number`, in the form of shape `bridge`."""
    at = position(number, per=per)
    return f"{at.lsn:x}-my-orders-insert-{at.ordinal}".encode()


def payload(number: int, size: int = 0) -> bytes:
    """Bytes that resemble NATS protocol lines and begin with the message's number."""
    return b"%d\r\nMSG + OK\r\n\x00\xff" % number + b"x" * size


def rows(
    numbers: Iterable[int],
    *,
    per: int = 3,
    destination: bytes = b"cdc.orders.insert",
    size: int = 0,
) -> pa.RecordBatch:
    """A batch of the messages with these numbers."""
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
        pa.array([1] * len(chosen), pa.uint64()),
        pa.array([None] * len(chosen), pa.binary()),
        headers.none(len(chosen)),
        pa.nulls(len(chosen), GROUP),
    ]
    return pa.record_batch(columns, schema=MESSAGES)


def with_column(batch: pa.RecordBatch, name: str, values: list[bytes | None]) -> pa.RecordBatch:
    """A batch with other values in a column of bytes."""
    at = MESSAGES.get_field_index(name)
    return batch.set_column(at, MESSAGES.field(at), pa.array(values, pa.binary()))


def with_groups(batch: pa.RecordBatch, groups: list[Group | None]) -> pa.RecordBatch:
    """A batch with these groups: each of the row and of the row before the change."""
    values = [
        None if each is None else dict(zip(("own", "former"), each, strict=True)) for each in groups
    ]
    at = MESSAGES.get_field_index("group")
    return batch.set_column(at, MESSAGES.field(at), pa.array(values, GROUP))


def write(sink: Sink, batch: pa.RecordBatch) -> None:
    """Write a batch as a pipeline does; none of its rows is refused."""
    assert sink.inspect(batch) == {}
    sink.write(batch)
