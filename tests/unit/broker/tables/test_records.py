"""Record batches ⇄ rows, with aiokafka's builder as the oracle."""

from __future__ import annotations

import gzip
import struct
from typing import TYPE_CHECKING, Any

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.tables import records
from tailrace.broker.tables.headers import to_json

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADERS = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
        st.none() | st.binary(),
    ),
    max_size=3,
)
_RECORDS = st.lists(
    st.tuples(
        st.integers(0, 253_402_300_799_999),
        st.none() | st.binary(),
        st.none() | st.binary(),
        _HEADERS,
    ),
    min_size=1,
    max_size=30,
)
MOST = 1 << 20
Found = list[tuple[int, bytes | None, bytes | None, list[records.Header]]]


def batch_of(found: Found) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=7, producer_epoch=1,
        base_sequence=40, batch_size=1 << 30,
    )  # fmt: skip
    for number, (timestamp, key, value, headers) in enumerate(found):
        builder.append(number, timestamp, key, value, headers)
    return bytes(builder.build())


def packed(data: bytes, codec: int, body: bytes) -> bytes:
    """A batch with compressed records, and with matching length and checksum."""
    (attributes,) = struct.unpack_from(">h", data, 21)
    rest = struct.pack(">h", attributes | codec) + data[23:61] + body
    length = struct.pack(">i", len(rest) + 9)
    return data[:8] + length + data[12:17] + struct.pack(">I", crc32c(rest)) + rest


@given(_RECORDS)
def test_a_batch_is_parsed_as_it_was_built(found: Found) -> None:
    batch = records.parse(batch_of(found), max_bytes=MOST)
    assert list(batch.records) == found
    assert (batch.producer_id, batch.producer_epoch, batch.sequence) == (7, 1, 40)
    assert batch.last_sequence == 40 + len(found) - 1


@given(_RECORDS, st.integers(0, 1 << 40))
def test_rows_become_the_same_records(found: Found, first: int) -> None:
    rows: list[records.Row] = [
        (first + 2 * number, timestamp, key, value,
         [[name, to_json(content)] for name, content in headers] or None)
        for number, (timestamp, key, value, headers) in enumerate(found)
    ]  # fmt: skip
    built = DefaultRecordBatch(records.build_batch(rows))
    assert built.validate_crc()
    assert [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for record in built
    ] == [(first + 2 * number, *record) for number, record in enumerate(found)]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compression(codec: int) -> None:
    found: Found = [(1_700_000_000_000 + n, None, b"value %d" % n * 20, []) for n in range(100)]
    plain = batch_of(found)
    body = plain[61:]
    compress: dict[int, Callable[[bytes], Any]] = {
        1: gzip.compress,
        2: cramjam.snappy.compress_raw,
        3: cramjam.lz4.compress,
        4: cramjam.zstd.compress,
    }
    data = packed(plain, codec, bytes(memoryview(compress[codec](body))))
    assert list(records.parse(data, max_bytes=MOST).records) == found
    with pytest.raises(records.BadBatchError) as caught:
        records.parse(data, max_bytes=len(body) - 1)
    assert caught.value.kafka_error == "message_too_large"


def test_snappy_in_blocks() -> None:
    found: Found = [(1_700_000_000_000, b"k", b"v" * 1000, [])]
    plain = batch_of(found)
    body = plain[61:]
    blocks = [body[at : at + 100] for at in range(0, len(body), 100)]
    framed = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for block in blocks:
        compressed = bytes(cramjam.snappy.compress_raw(block))
        framed += struct.pack(">i", len(compressed)) + compressed
    assert list(records.parse(packed(plain, 2, framed), max_bytes=MOST).records) == found


def test_a_header_that_jsonb_cannot_hold_is_refused() -> None:
    with pytest.raises(records.BadBatchError, match="header"):
        records.parse(batch_of([(0, None, b"v", [("a\0b", b"1")])]), max_bytes=MOST)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(records.BadBatchError):
        records.parse(data, max_bytes=MOST)


@given(st.data())
def test_damaged_batches_are_refused(data: st.DataObject) -> None:
    plain = bytearray(batch_of([(1_700_000_000_000, b"key", b"value", [("h", b"1")])] * 3))
    at = data.draw(st.integers(8, len(plain) - 1))
    plain[at] ^= data.draw(st.integers(1, 255))
    if 12 <= at < 16:
        # The leader epoch, which is not covered by the checksum.
        records.parse(bytes(plain), max_bytes=MOST)
        return
    with pytest.raises(records.BadBatchError):
        records.parse(bytes(plain), max_bytes=MOST)


def test_the_cost_of_a_batch_is_known_from_its_header() -> None:
    plain = batch_of([(0, None, b"value", [])] * 10)
    cost = records.cost(plain, max_bytes=MOST)
    assert cost.memory_bytes == len(plain) + 10 * records.RECORD_BYTES
    assert not cost.large
    assert cost.memory_bytes >= records.parse(plain, max_bytes=MOST).memory_bytes
    # How much a compressed batch has is not known: as much as it may have.
    gzipped = packed(plain, 1, gzip.compress(plain[61:]))
    assert records.cost(gzipped, max_bytes=MOST).memory_bytes == MOST + 10 * records.RECORD_BYTES
    assert records.cost(batch_of([(0, None, b"", [])] * 5000), max_bytes=MOST).large
    assert records.cost(batch_of([(0, None, bytes(MOST), [])]), max_bytes=MOST).large


def test_a_batch_of_too_many_records_is_refused() -> None:
    """Empty records compress to almost nothing: 1.2 million of them to 12 KB."""
    data = bytearray(batch_of([(0, None, b"", [])]))
    struct.pack_into(">i", data, 57, records.MAX_RECORDS + 1)
    with pytest.raises(records.BadBatchError, match="100,001 records, max is 100,000") as caught:
        records.cost(bytes(data), max_bytes=MOST)
    assert caught.value.kafka_error == "message_too_large"
