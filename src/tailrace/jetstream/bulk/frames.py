"""A batch of messages as the bytes a NATS server reads: one join over whole columns.

    HPUB <destination> <reply> <header bytes> <all bytes>␍␊
    NATS/1.0␍␊
    Nats-Msg-Id: <id>␍␊
    ␍␊
    <payload>␍␊

The reply ends with the message's number on this connection, so that an answer can name what it
answers. In an atomic batch only the last message has a reply: the number of the first, a dash, and
how many there are. A column `headers`, where there is one, holds more header lines, each with its
line break before it.

The columns must be clean: `tailrace.jetstream.subjects` sees to the destinations, and `broken_id`
finds an id that would end its header line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

BATCH_FIELDS_BYTES = 128
"""More than the fields of an atomic batch add to a header."""
_FIXED_BYTES = len(b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")


def header_bytes(ids: pa.Array) -> npt.NDArray[np.int64]:
    """How long the header block of each message is, without the fields of a batch."""
    return lengths(ids) + _FIXED_BYTES


def frame(batch: pa.RecordBatch, *, inbox: bytes, first: int) -> pa.Array:
    """Every row as an HPUB that is answered at `inbox` and its number, counted from `first`."""
    reply = [_scalar(b" " + inbox), _digits(np.arange(first, first + batch.num_rows))]
    header = header_bytes(batch.column("id"))
    if "headers" not in batch.schema.names:
        return _joined(batch, reply, [], header)
    fields = batch.column("headers")
    return _joined(batch, reply, [fields], header + lengths(fields))


def frame_atomic(
    batch: pa.RecordBatch, starts: npt.NDArray[np.int64], *, inbox: bytes, first: int
) -> pa.Array:
    """An atomic batch from each of `starts` on. A single message is atomic as it is."""
    rows = np.arange(batch.num_rows)
    sizes = np.diff(np.r_[starts, batch.num_rows])
    start, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
    last, several = rows == start + size - 1, size > 1
    name = _digits(start + first)
    nothing = _scalar(b"")
    count = _either(several, _join(_scalar(b"-"), _digits(size)), nothing)
    reply = _either(last, _join(_scalar(b" " + inbox), name, count), nothing)
    batch_id = inbox.removeprefix(b"_INBOX.")
    member = _join(
        _scalar(b"\r\nNats-Batch-Id: " + batch_id),
        name,
        _scalar(b"\r\nNats-Batch-Sequence: "),
        _digits(rows - start + 1),
        _either(last, _scalar(b"\r\nNats-Batch-Commit: 1"), nothing),
    )
    fields = _either(several, member, nothing)
    header = header_bytes(batch.column("id")) + lengths(fields)
    return _joined(batch, [reply], [fields], header)


def _joined(
    batch: pa.RecordBatch,
    reply: list[pa.Scalar | pa.Array],
    fields: list[pa.Scalar | pa.Array],
    header: npt.NDArray[np.int64],
) -> pa.Array:
    payload = batch.column("payload")
    return _join(
        _scalar(b"HPUB "),
        batch.column("destination"),
        *reply,
        _scalar(b" "),
        _digits(header),
        _scalar(b" "),
        _digits(header + lengths(payload)),
        _scalar(b"\r\nNATS/1.0\r\nNats-Msg-Id: "),
        batch.column("id"),
        *fields,
        _scalar(b"\r\n\r\n"),
        payload,
        _scalar(b"\r\n"),
    )


def broken_id(ids: pa.Array) -> int | None:
    """The first row whose id holds a line break or a NUL; None when all are clean."""
    bounds = byte_bounds(ids)
    if bounds[0] == bounds[-1]:
        return None
    text = np.frombuffer(ids.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    bad = np.flatnonzero((text == 13) | (text == 10) | (text == 0))
    if not len(bad):
        return None
    return int(np.searchsorted(bounds, bad[0] + bounds[0], side="right")) - 1


def byte_bounds(column: pa.Array) -> npt.NDArray[np.int64]:
    """Where each value of a binary column begins in its buffer, and where the last one ends."""
    if not len(column):
        return np.zeros(1, np.int64)
    bounds = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
    return bounds.astype(np.int64)


def lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """How many bytes each value has."""
    counted: npt.NDArray[np.int32] = pc.binary_length(column).to_numpy(zero_copy_only=False)
    return counted.astype(np.int64)


def _join(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _scalar(b""))


def _either(
    which: npt.NDArray[np.bool_], yes: pa.Array | pa.Scalar, no: pa.Array | pa.Scalar
) -> pa.Array:
    return pc.if_else(pa.array(which), yes, no)


def _digits(numbers: npt.NDArray[np.int64]) -> pa.Array:
    return pc.cast(pa.array(numbers), pa.string()).cast(pa.binary())


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())
