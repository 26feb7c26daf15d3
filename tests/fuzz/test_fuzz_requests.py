"""Requests and record batches as the broker parses them, without a network.

A request is first walked along its schema, then parsed: both must find the same end, and neither
may have another error than MalformedError. What parsing a batch takes is charged by its header, so
the header's claim must be an upper bound.
"""

from __future__ import annotations

import gzip
import struct
from typing import Any

import cramjam
import pytest
from crc32c import crc32c

from tailrace.broker import bounds, wire
from tailrace.broker.api import APIS
from tailrace.broker.tables import records
from tailrace.broker.tables.records import BadBatchError
from tailrace.errors import MalformedError
from tests.fuzz.counting import TIMEOUT_S, fuzz
from tests.fuzz.test_fuzz_broker import batch, corpus

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(TIMEOUT_S)]

_HEADER_BYTES, _CRC_AT, _ATTRIBUTES_AT = 61, 17, 21
_MAX_BYTES = 1 << 16


def test_requests() -> None:
    fuzz("requests of Kafka's clients", corpus(), _request)


def _request(frame: bytes) -> bool:
    try:
        head = wire.head(frame)
        api = APIS.get(head.api)
        if api is None or not api.min_version <= head.version <= api.max_version:
            return False
        kind, read_header, read_body = wire._readers(head.api, head.version)
        try:
            _, start = read_header(frame, 0)
        except Exception:
            with pytest.raises(MalformedError):
                wire.request(frame, head)
            return False
        walked = _walk(frame, start, kind)
        wire.request(frame, head)
    except MalformedError:
        return False
    assert read_body(frame, start)[1] == walked - start
    return True


def _walk(frame: bytes, start: int, kind: Any) -> int:
    bounds.check(frame, start, kind)
    return bounds._Walk(frame).walk(start, kind, max_count=10_000)


def batches() -> list[bytes]:
    plain = batch()
    body = plain[_HEADER_BYTES:]
    packed = {
        1: gzip.compress(body),
        2: bytes(cramjam.snappy.compress_raw(body)),
        3: bytes(cramjam.lz4.compress(body)),
        4: bytes(cramjam.zstd.compress(body)),
    }
    return [plain, *(_batch(plain, codec, data) for codec, data in packed.items())]


def _batch(plain: bytes, codec: int, body: bytes) -> bytes:
    head = plain[:_ATTRIBUTES_AT] + struct.pack(">h", codec)
    return resealed(head + plain[_ATTRIBUTES_AT + 2 : _HEADER_BYTES] + body)


def resealed(data: bytes) -> bytes:
    """A batch whose length, version and checksum fit what is there."""
    if len(data) < _HEADER_BYTES:
        return data
    crc = struct.pack(">I", crc32c(data[_ATTRIBUTES_AT:]))
    return data[:8] + struct.pack(">i", len(data) - 12) + data[12:16] + b"\2" + crc + data[21:]


def test_record_batches() -> None:
    fuzz("record batches", batches(), _batch_accepts)


def test_record_batches_with_valid_checksums() -> None:
    fuzz("record batches, resealed", batches(), lambda data: _batch_accepts(resealed(data)))


def _batch_accepts(data: bytes) -> bool:
    try:
        cost = records.cost(data, max_bytes=_MAX_BYTES)
        parsed = records.parse(data, max_bytes=_MAX_BYTES)
    except BadBatchError:
        return False
    assert len(parsed.records) <= records.MAX_RECORDS
    assert parsed.memory_bytes <= cost.memory_bytes + _HEADER_BYTES
    rows = records.copy_rows(parsed, 1, 0, 0)
    assert len(rows) > 40 * len(parsed.records)
    return True
