"""Bytes of segment headers and entries: layouts, round trips, lies."""

from __future__ import annotations

import json
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import MalformedError
from tailrace.log.format.entry import NO_OFFSETS, Entry, Kind, pack
from tailrace.log.format.layout import (
    ENTRY_HEADER_BYTES,
    MAX_BODY_BYTES,
    SEGMENT_HEADER_BYTES,
    Codec,
    SegmentHeader,
    decode_entry,
    decode_frame,
    decode_segment_header,
    encode_entry,
    segment_header_bytes,
)
from tailrace.position import ORIGIN, Lsn, Position
from tests.fix_log import IDENTITY, START, TIME, Session, transaction, whole_entry

HEADER = SegmentHeader(
    identity=IDENTITY,
    log_id="5f0c2a9e4b1d4c6f8a7e3d2b1c0f9e8d",
    sequence=7,
    epoch=3,
    base=Position(Lsn(0x1100), 4),
    base_end_lsn=Lsn(0x1130),
    base_time=TIME,
    created_at="2026-01-31T12:00:00+00:00",
)
ENTRY = whole_entry([transaction(0), transaction(1)], Session(), START, TIME)


def decoded(data: bytes) -> Entry:
    frame = decode_frame(data[:ENTRY_HEADER_BYTES])
    return decode_entry(frame, data[:ENTRY_HEADER_BYTES], data[ENTRY_HEADER_BYTES:])


def equal(one: Entry, other: Entry) -> bool:
    offsets = np.array_equal(one.offsets, other.offsets)
    return offsets and replace(one, offsets=NO_OFFSETS) == replace(other, offsets=NO_OFFSETS)


def resealed(data: bytes) -> bytes:
    """An entry with its checksum made to fit."""
    blank = data[:8] + bytes(4) + data[12:]
    return data[:8] + struct.pack("<I", crc32c(blank)) + data[12:]


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return resealed(data[:at] + value + data[at + len(value) :])


def test_the_segment_header_begins_with_magic_and_version() -> None:
    data = HEADER.encode()
    assert data[:10] == b"TAILRACE\x01\x00"
    assert segment_header_bytes(data[:SEGMENT_HEADER_BYTES]) == len(data)
    assert json.loads(data[SEGMENT_HEADER_BYTES:])["slot"] == "tailrace"


def test_segment_headers_round_trip() -> None:
    assert decode_segment_header(HEADER.encode()) == HEADER


def test_every_flipped_byte_of_a_segment_header_is_noticed() -> None:
    data = HEADER.encode()
    for at in range(len(data)):
        with pytest.raises(MalformedError):
            decode_segment_header(data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :])


def test_every_cut_of_a_segment_header_is_noticed() -> None:
    data = HEADER.encode()
    for size in range(len(data)):
        with pytest.raises(MalformedError):
            decode_segment_header(data[:size])


def test_a_segment_of_a_later_version_is_refused() -> None:
    data = HEADER.encode()
    with pytest.raises(MalformedError, match="version 2; this release reads version 1") as caught:
        segment_header_bytes(data[:8] + b"\x02\x00" + data[10:])
    assert "upgrade" in caught.value.hint


def test_a_segment_header_of_absurd_length_is_refused() -> None:
    with pytest.raises(MalformedError, match="claims"):
        segment_header_bytes(struct.pack("<8sHHII", b"TAILRACE", 1, 0, 1 << 30, 0))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("base", 5),
        ("base", "1.5"),
        ("base", f"0/1.{1 << 64}"),
        ("base_end_lsn", None),
        ("base_end_lsn", []),
        ("base_time", float("inf")),
        ("base_time", 1 << 63),
        ("sequence", -1),
        ("sequence", True),
        ("epoch", "3"),
        ("timeline", 1.0),
        ("slot", 9),
        ("slot", "\ud800"),
    ],
)
def test_identities_of_the_wrong_kind_are_refused(key: str, value: object) -> None:
    text = json.loads(HEADER.encode()[SEGMENT_HEADER_BYTES:]) | {key: value}
    with pytest.raises(MalformedError, match="identity in the segment header is invalid"):
        decode_segment_header(sealed_header(json.dumps(text).encode()))


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"7", b"{", b"\xff", b"[" * 60_000])
def test_identities_that_are_not_one_are_refused(text: bytes) -> None:
    with pytest.raises(MalformedError, match="identity in the segment header is invalid"):
        decode_segment_header(sealed_header(text))


def sealed_header(text: bytes) -> bytes:
    blank = struct.pack("<8sHHII", b"TAILRACE", 1, 0, len(text), 0)
    crc = crc32c(text, crc32c(blank))
    return struct.pack("<8sHHII", b"TAILRACE", 1, 0, len(text), crc) + text


@pytest.mark.parametrize("codec", list(Codec))
def test_entries_round_trip(codec: Codec) -> None:
    data = b"".join(encode_entry(ENTRY, epoch=3, codec=codec))
    assert equal(decoded(data), replace(ENTRY, epoch=3))


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=20),
    st.sampled_from(list(Codec)),
    st.builds(
        dict,
        kind=st.sampled_from(list(Kind)),
        xid=st.integers(0, (1 << 32) - 1),
        begins=st.booleans(),
        ends=st.booleans(),
        first_time=st.integers(-(1 << 63), (1 << 63) - 1),
        changes=st.integers(0, (1 << 32) - 1),
        end_lsn=st.integers(0, (1 << 64) - 1).map(Lsn),
    ),
)
def test_any_entry_round_trips(
    messages: list[bytes], codec: Codec, fields: dict[str, object]
) -> None:
    offsets, body = pack(messages)
    plain = Entry(
        kind=Kind.PROGRESS, first=ORIGIN, last=ORIGIN, end_lsn=Lsn(0),
        first_time=0, last_time=0, offsets=offsets, body=body,
    )  # fmt: skip
    entry = replace(plain, **fields)  # type: ignore[arg-type]
    assert equal(decoded(b"".join(encode_entry(entry, epoch=0, codec=codec))), entry)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_flipped_byte_of_an_entry_is_noticed(codec: Codec) -> None:
    data = b"".join(encode_entry(ENTRY, epoch=3, codec=codec))
    for at in range(len(data)):
        with pytest.raises(MalformedError):
            decoded(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])


def test_every_cut_of_an_entry_is_noticed() -> None:
    data = b"".join(encode_entry(ENTRY, epoch=3))
    for size in range(len(data)):
        with pytest.raises(MalformedError):
            decoded(data[:size])


def test_an_entry_of_a_later_version_is_refused() -> None:
    data = b"".join(encode_entry(ENTRY, epoch=3))
    with pytest.raises(MalformedError, match="version 9; this release reads version 1") as caught:
        decoded(patched(data, 4, b"\x09"))
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize(
    ("at", "value"),
    [(5, b"\x00"), (5, b"\x09"), (6, b"\x04"), (7, b"\x02")],
    ids=["no kind", "unknown kind", "unknown flag", "unknown codec"],
)
def test_unknown_kinds_flags_and_codecs_are_refused(at: int, value: bytes) -> None:
    with pytest.raises(MalformedError, match="unknown"):
        decoded(patched(b"".join(encode_entry(ENTRY, epoch=3)), at, value))


@pytest.mark.parametrize("at", [12, 16])
def test_absurd_lengths_are_refused_before_anything_is_allocated(at: int) -> None:
    data = b"".join(encode_entry(ENTRY, epoch=3))
    with pytest.raises(MalformedError, match="claims"):
        decode_frame(patched(data, at, struct.pack("<I", MAX_BODY_BYTES + 1)))


def test_more_messages_than_fit_the_body_are_refused() -> None:
    data = b"".join(encode_entry(ENTRY, epoch=3))
    with pytest.raises(MalformedError, match="messages"):
        decode_frame(patched(data, 20, struct.pack("<I", len(data))))


@pytest.mark.parametrize(
    "table", [[1, 2, 3], [0, 2, 2, 3], [0, 3, 2, 3], [0, 2], [0, 1, 4], [0, 1, 1 << 31]]
)
def test_offset_tables_that_do_not_fit_are_refused(table: list[int]) -> None:
    bad = replace(ENTRY, offsets=np.array(table, np.uint32), body=b"abc")
    with pytest.raises(MalformedError, match="offset table"):
        decoded(b"".join(encode_entry(bad, epoch=3)))


def test_an_uncompressed_entry_has_one_length() -> None:
    data = b"".join(encode_entry(ENTRY, epoch=3))
    (raw_bytes,) = struct.unpack_from("<I", data, 16)
    with pytest.raises(MalformedError, match="two different lengths"):
        decoded(patched(data, 16, struct.pack("<I", raw_bytes + 1)))


def compressed(stored: bytes, *, claims: int) -> bytes:
    """An entry whose compressed body and claimed length are anything."""
    data = b"".join(encode_entry(ENTRY, epoch=3, codec=Codec.ZSTD))[:ENTRY_HEADER_BYTES]
    data = data[:12] + struct.pack("<III", len(stored), claims, 0) + data[24:]
    return resealed(data + stored)


def test_a_bomb_does_not_go_off() -> None:
    """A few kilobytes that would grow to a gigabyte, under a header that claims a hundred bytes."""
    bomb = zstandard.ZstdCompressor().compressobj(size=1 << 30)
    parts = [bomb.compress(bytes(1 << 20)) for _ in range(1 << 10)]
    stored = b"".join([*parts, bomb.flush()])
    tracemalloc.start()
    with pytest.raises(MalformedError, match="another length"):
        decoded(compressed(stored, claims=100))
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("claims", [99, 101, MAX_BODY_BYTES])
def test_a_compressed_body_has_the_length_it_claims(claims: int) -> None:
    stored = zstandard.ZstdCompressor().compress(bytes(100))
    with pytest.raises(MalformedError, match="another length"):
        decoded(compressed(stored, claims=claims))


def test_a_compressed_body_must_state_its_length() -> None:
    stored = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    with pytest.raises(MalformedError, match="another length"):
        decoded(compressed(stored, claims=100))


@pytest.mark.parametrize("stored", [b"", b"\0" * 40])
def test_a_body_that_is_not_zstd_is_refused(stored: bytes) -> None:
    with pytest.raises(MalformedError, match=r"body of an entry (is invalid|has another length)"):
        decoded(compressed(stored, claims=100))


def test_bytes_after_a_compressed_body_are_refused() -> None:
    stored = zstandard.ZstdCompressor().compress(bytes(100))
    with pytest.raises(MalformedError, match="compressed body of an entry is invalid"):
        decoded(compressed(stored + b"more", claims=100))
