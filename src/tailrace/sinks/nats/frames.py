"""A batch of messages as the bytes a NATS server reads: one join over whole columns.

    HPUB <destination> <reply> <header bytes> <all bytes>␍␊
    NATS/1.0␍␊
    Nats-Msg-Id: <id>␍␊
    ␍␊
    <payload>␍␊

The reply ends with the message's number on this connection, so that an answer can name what it
answers. The columns must be clean: `tailrace.sinks.nats.subjects` sees to the destinations, and
`broken_id` finds an id that would end its header line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

_FIXED_BYTES = len(b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")


def header_bytes(ids: pa.Array) -> npt.NDArray[np.int64]:
    """How long the header block of each message is, without the fields of a batch."""
    return _lengths(ids) + _FIXED_BYTES


def frame(batch: pa.RecordBatch, *, inbox: bytes, first: int) -> pa.Array:
    """Every row as an HPUB that is answered at `inbox` and its number, counted from `first`."""
    reply = [_scalar(b" " + inbox), _digits(np.arange(first, first + batch.num_rows))]
    return _joined(batch, reply, [], header_bytes(batch.column("id")))


def _joined(
    batch: pa.RecordBatch,
    reply: list[pa.Scalar | pa.Array],
    fields: list[pa.Scalar | pa.Array],
    header: npt.NDArray[np.int64],
) -> pa.Array:
    payload = batch.column("payload")
    return pc.binary_join_element_wise(
        _scalar(b"HPUB "),
        batch.column("destination"),
        *reply,
        _scalar(b" "),
        _digits(header),
        _scalar(b" "),
        _digits(header + _lengths(payload)),
        _scalar(b"\r\nNATS/1.0\r\nNats-Msg-Id: "),
        batch.column("id"),
        *fields,
        _scalar(b"\r\n\r\n"),
        payload,
        _scalar(b"\r\n"),
        _scalar(b""),
    )


def broken_id(ids: pa.Array) -> int | None:
    """The first row whose id holds a line break or a NUL; None when all are clean."""
    bounds = np.frombuffer(ids.buffers()[1], np.int32)[ids.offset : ids.offset + len(ids) + 1]
    if len(ids) == 0 or bounds[0] == bounds[-1]:
        return None
    text = np.frombuffer(ids.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    bad = np.flatnonzero((text == 13) | (text == 10) | (text == 0))
    if not len(bad):
        return None
    return int(np.searchsorted(bounds, bad[0] + bounds[0], side="right")) - 1


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    return pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64)


def _digits(numbers: npt.NDArray[np.int64]) -> pa.Array:
    return pc.cast(pa.array(numbers), pa.string()).cast(pa.binary())


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())
