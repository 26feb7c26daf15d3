"""The durable mark: round trips, torn records, versions."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from tailrace.errors import CorruptError
from tailrace.log.format import mark as marks
from tailrace.log.format.mark import Mark
from tailrace.position import Lsn, Position
from tailrace.testing import MemoryStore

MARK = Mark(
    sequence=3, offset=4096, position=Position(Lsn(0x1100), 5), end_lsn=Lsn(0x1130),
    time=-7, epoch=2,
)  # fmt: skip


def test_marks_round_trip() -> None:
    assert marks.decode(MARK.encode()) == MARK
    assert len(MARK.encode()) == marks.RECORD_BYTES


def test_every_flipped_byte_and_every_cut_is_noticed() -> None:
    data = MARK.encode()
    for at in range(len(data)):
        assert marks.decode(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]) is None
        assert marks.decode(data[:at]) is None


def test_a_store_without_a_mark_has_none() -> None:
    assert marks.read(MemoryStore()) is None
    assert marks.peek(MemoryStore()) is None


def test_a_torn_mark_is_corrupt_for_readers_and_nothing_for_recovery() -> None:
    store = MemoryStore.holding({marks.NAME: MARK.encode()[:-1] + b"?"})
    with pytest.raises(CorruptError, match="unreadable") as caught:
        marks.read(store)
    assert "tailrace capture" in caught.value.hint
    assert marks.peek(store) is None


def test_a_mark_of_a_later_version_is_refused() -> None:
    data = bytearray(MARK.encode()[:-4])
    data[4:6] = struct.pack("<H", 2)
    store = MemoryStore.holding({marks.NAME: bytes(data) + struct.pack("<I", crc32c(bytes(data)))})
    for read in (marks.read, marks.peek):
        with pytest.raises(CorruptError, match="version 2") as caught:
            read(store)
        assert "upgrade" in caught.value.hint


def test_a_foreign_file_is_not_a_mark() -> None:
    data = b"XXXX" + MARK.encode()[4:-4]
    assert marks.decode(data + struct.pack("<I", crc32c(data))) is None


@pytest.mark.parametrize("durably", [True, False])
def test_writing_makes_a_missing_file(durably: bool) -> None:
    store = MemoryStore()
    marks.write(store, MARK, durably=durably)
    assert marks.read(store) == MARK
