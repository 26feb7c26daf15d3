"""A batch of messages as the bytes a NATS server reads: one join over whole columns.

    HPUB <destination> <reply> <header bytes> <all bytes>␍␊
    NATS/1.0␍␊
    Nats-Msg-Id: <id>␍␊
    ␍␊
    <payload>␍␊

The reply subject ends with the number of the message on this connection, so that an answer names
the message it belongs to. In an atomic batch only the last message has a reply: the number of the
first message, a dash, and the number of messages. `fields` are further header lines of every
message, the column `headers` those of one message; in the optional column `lines` each of them
follows its line break.

The columns must be valid: `tailrace.jetstream.subjects` checks the destinations, and `broken_ids`
finds an id that would end its header line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import headers

if TYPE_CHECKING:
    import numpy.typing as npt

BATCH_FIELDS_BYTES = 128
"""Upper bound of the bytes that an atomic batch adds to a header."""
_FIXED_BYTES = len(b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")


def header_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Bytes of the header block of each message, without the fields of an atomic batch."""
    size = lengths(batch.column("id")) + _FIXED_BYTES
    if "lines" in batch.schema.names:
        size += lengths(batch.column("lines"))
    if "headers" in batch.schema.names:
        size += headers.sizes(batch.column("headers"), each=len(b"\r\n: "))
    return size


def _lines(batch: pa.RecordBatch) -> list[pa.Array]:
    """The header lines of each message."""
    if "lines" in batch.schema.names:
        return [batch.column("lines")]
    if "headers" not in batch.schema.names:
        return []
    made = headers.joined(
        batch.column("headers"),
        lambda names, values: (_scalar(b"\r\n"), names, _scalar(b": "), values),
    )
    return [] if made is None else [made]


def frame(batch: pa.RecordBatch, *, inbox: bytes, first: int, fields: bytes = b"") -> pa.Array:
    """Every row as an HPUB whose reply subject is `inbox` and a number, counted from `first`."""
    reply = [_scalar(b" " + inbox), _digits(np.arange(first, first + batch.num_rows))]
    header = header_bytes(batch) + len(fields)
    further = [_scalar(fields)] if fields else []
    return _publish_frames(batch, reply, further, header)


def frame_atomic(
    batch: pa.RecordBatch,
    starts: npt.NDArray[np.int64],
    *,
    inbox: bytes,
    first: int,
    fields: bytes = b"",
) -> pa.Array:
    """One atomic batch per start. A single message is atomic by itself."""
    rows = np.arange(batch.num_rows)
    sizes = np.diff(np.r_[starts, batch.num_rows])
    start, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
    last, several = rows == start + size - 1, size > 1
    name = _digits(start + first)
    empty = _scalar(b"")
    count = _either(several, _join(_scalar(b"-"), _digits(size)), empty)
    reply = _either(last, _join(_scalar(b" " + inbox), name, count), empty)
    batch_id = inbox.removeprefix(b"_INBOX.")
    member = _join(
        _scalar(b"\r\nNats-Batch-Id: " + batch_id),
        name,
        _scalar(b"\r\nNats-Batch-Sequence: "),
        _digits(rows - start + 1),
        _either(last, _scalar(b"\r\nNats-Batch-Commit: 1"), empty),
    )
    members = _either(several, member, empty)
    header = header_bytes(batch) + len(fields) + lengths(members)
    return _publish_frames(batch, [reply], [_scalar(fields), members], header)


def _publish_frames(
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
        *_lines(batch),
        _scalar(b"\r\n\r\n"),
        payload,
        _scalar(b"\r\n"),
    )


def broken_ids(ids: pa.Array) -> list[int]:
    """The rows whose ids contain a line break or a NUL."""
    bounds = byte_bounds(ids)
    if bounds[0] == bounds[-1]:
        return []
    text = np.frombuffer(ids.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    bad = np.flatnonzero((text == 13) | (text == 10) | (text == 0))
    rows = np.searchsorted(bounds, bad + bounds[0], side="right") - 1
    return [int(row) for row in np.unique(rows)]


def byte_bounds(column: pa.Array) -> npt.NDArray[np.int64]:
    """The offsets of a binary column: the start of each value, and the end of the last."""
    if not len(column):
        return np.zeros(1, np.int64)
    bounds = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
    return bounds.astype(np.int64)


def lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """The length of each value in bytes."""
    sizes: npt.NDArray[np.int32] = pc.binary_length(column).to_numpy(zero_copy_only=False)
    return sizes.astype(np.int64)


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
