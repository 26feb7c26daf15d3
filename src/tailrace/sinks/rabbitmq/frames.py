r"""Columns as the frames of messages: one join over whole columns, no Python per row.

A message is a method frame (where to), a header frame (size and properties) and body frames. A
frame is its type, its channel, its size, the content and the byte 0xCE.

    01 chan size  basic.publish exchange routing-key mandatory           CE
    02 chan size  basic body-size flags content-type headers delivery-mode message-id ...  CE
    03 chan size  payload                                                CE
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import headers
from tailrace.decode import columns
from tailrace.sinks.rabbitmq.destination import Destination

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from tailrace.sinks.rabbitmq.settings import RabbitMQSink

_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_FRAME_BYTES = 8
"""What a frame has beside its content."""
_PUBLISH = struct.pack(">HHH", 60, 40, 0)
_BASIC = struct.pack(">HH", 60, 0)
_HEADER_BYTES = 12 + 2 + 4 + 1 + 1 + 8
"""Class, weight, body size, flags, size of the headers, delivery mode, length of the id, time."""
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE = 1 << 15, 1 << 13, 1 << 12
_MESSAGE_ID, _TIMESTAMP, _TYPE = 1 << 7, 1 << 6, 1 << 5
_KEY = b"\x03keyS"
_NOTHING = columns.constant(b"")


class Frames:
    """Builds the frames of messages for one channel."""

    def __init__(self, settings: RabbitMQSink, *, channel: int, frame_max: int) -> None:
        self._settings = settings
        self._channel = struct.pack(">H", channel)
        self.header_max = self._body_max = frame_max - _FRAME_BYTES
        self._content_type = _short(settings.content_type)
        self._type = _short(settings.message_type) if settings.message_type else b""
        self._flags = _CONTENT_TYPE | _HEADERS | _DELIVERY_MODE | _MESSAGE_ID | _TIMESTAMP
        self._flags |= _TYPE if self._type else 0
        self._headers = b"".join(
            _short(name) + b"S" + struct.pack(">I", len(value.encode())) + value.encode()
            for name, value in settings.headers.items()
        )
        self._fixed_bytes = len(self._content_type) + len(self._headers) + len(self._type)

    def header_bytes(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """The size of each header frame, which cannot be divided."""
        own = _lengths(self._own_headers(rows))
        return _HEADER_BYTES + self._fixed_bytes + _lengths(rows.column("id")) + own

    def build(self, rows: pa.RecordBatch) -> memoryview:
        """The frames of messages, which are not none."""
        pieces = [self._methods(rows), *self._header_frames(rows), *self._body_frames(rows)]
        made = pc.binary_join_element_wise(*pieces, _NOTHING)
        return columns.content(made).data

    def _methods(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        coded = rows.column("destination").dictionary_encode()
        frames = [self._method(each) for each in coded.dictionary.to_pylist()]
        return pa.array(frames, pa.binary()).take(coded.indices)

    def _method(self, destination: bytes) -> bytes:
        found = Destination.parse(destination, self._settings.exchange)
        assert found is not None, "inspect has found it valid"
        names = b"".join(bytes([len(name)]) + name for name in found)
        content = _PUBLISH + names + bytes([self._settings.mandatory])
        return self._begin(_METHOD) + struct.pack(">I", len(content)) + content + _END

    def _header_frames(self, rows: pa.RecordBatch) -> list[pa.BinaryArray]:
        count, ids = rows.num_rows, rows.column("id")
        own, names = self._own_headers(rows), _lengths(ids)
        table = _lengths(own) + len(self._headers)
        size = _HEADER_BYTES + self._fixed_bytes + names + _lengths(own)
        seconds = rows.column("committed_at").to_numpy() // 1_000_000
        start = _fixed(
            count,
            self._begin(_HEADER),
            _unsigned(size, 4),
            _BASIC,
            _unsigned(_lengths(rows.column("payload")), 8),
            struct.pack(">H", self._flags) + self._content_type,
            _unsigned(table, 4),
        )
        mode = bytes([2 if self._settings.persistent else 1])
        middle = _fixed(count, self._headers + mode, _unsigned(names, 1))
        return [start, own, middle, ids, _fixed(count, _unsigned(seconds, 8), self._type + _END)]

    def _own_headers(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The headers of each message: those of the pipeline, and `key`."""
        keys = self._key_headers(rows.column("key"))
        added = headers.joined(rows.column("headers"), _entry)
        if added is None:
            return keys
        return pc.binary_join_element_wise(keys, added, _NOTHING)

    def _key_headers(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """The header `key` of each message that has one."""
        if keys.null_count == len(keys):
            return pa.repeat(_NOTHING, len(keys))
        sizes = _fixed(len(keys), _unsigned(_lengths(keys), 4))
        made = pc.binary_join_element_wise(columns.constant(_KEY), sizes, keys, _NOTHING)
        return made.fill_null(_NOTHING)

    def _body_frames(self, rows: pa.RecordBatch) -> list[pa.BinaryArray | pa.BinaryScalar]:
        payloads, count = rows.column("payload"), rows.num_rows
        sizes = _lengths(payloads)
        starts = _fixed(count, self._begin(_BODY), _unsigned(sizes, 4))
        one = (sizes > 0) & (sizes <= self._body_max)
        if one.all():
            return [starts, payloads, columns.constant(_END)]
        made = pc.binary_join_element_wise(starts, payloads, columns.constant(_END), _NOTHING)
        others = [self._divided(payloads[row].as_py()) for row in np.flatnonzero(~one).tolist()]
        return [pc.replace_with_mask(made, pa.array(~one), pa.array(others, pa.binary()))]

    def _divided(self, payload: bytes) -> bytes:
        """The frames of a body that does not fit one; an empty body has none."""
        parts = [
            payload[start : start + self._body_max]
            for start in range(0, len(payload), self._body_max)
        ]
        begin = self._begin(_BODY)
        return b"".join(begin + struct.pack(">I", len(part)) + part + _END for part in parts)

    def _begin(self, kind: int) -> bytes:
        return bytes([kind]) + self._channel


def _short(text: str) -> bytes:
    """A short string of AMQP."""
    return bytes([len(text.encode())]) + text.encode()


def _lengths(values: pa.BinaryArray) -> NDArray[np.int64]:
    """Bytes of each value; 0 for a null."""
    return np.diff(columns.offsets(columns.dense(values))).astype(np.int64)


def _unsigned(values: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """Numbers in network order, a row each."""
    return values.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]


def _entry(names: pa.BinaryArray, values: pa.BinaryArray) -> list[pa.Array | pa.Scalar]:
    """A header as an entry of an AMQP table."""
    name = _fixed(len(names), _unsigned(_lengths(names), 1))
    size = _fixed(len(values), _unsigned(_lengths(values), 4))
    return [name, names, columns.constant(b"S"), size, values]


def _fixed(count: int, *parts: bytes | NDArray[np.uint8]) -> pa.BinaryArray:
    """Rows of constants and of matrices, side by side."""
    matrices = [
        np.broadcast_to(np.frombuffer(part, np.uint8), (count, len(part)))
        if isinstance(part, bytes)
        else part
        for part in parts
    ]
    return columns.fixed(np.concatenate(matrices, axis=1))
