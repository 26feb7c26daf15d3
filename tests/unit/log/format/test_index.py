"""The sparse index: which entries get a row, and damaged rows."""

from __future__ import annotations

from dataclasses import replace

from tailrace.log.format import index
from tailrace.position import Lsn
from tailrace.testing import MemoryStore
from tests.fix_log import SECOND, TIME, Session, relation, transaction, whole_entry

PLAIN = whole_entry([transaction(0)], Session(sent={1: relation(1)}), Lsn(0), 0)
SCHEMA = whole_entry([transaction(0)], Session(), Lsn(0), 0)


def row(offset: int) -> index.Row:
    return index.Row(offset=offset, first=PLAIN.first, time_before=-5, schemas=False)


def test_a_row_every_so_many_bytes() -> None:
    builder = index.IndexBuilder(time_before=0, every_bytes=100)
    offsets = [offset for offset in range(0, 500, 30) if builder.add(offset, PLAIN)]
    assert offsets == [0, 120, 240, 360, 480]


def test_every_entry_with_schemas_gets_a_row() -> None:
    builder = index.IndexBuilder(time_before=0, every_bytes=100)
    made = [builder.add(offset, SCHEMA) for offset in (0, 10, 20)]
    assert [one.schemas for one in made if one] == [True, True, True]


def test_rows_know_the_latest_time_before_them() -> None:
    builder = index.IndexBuilder(time_before=7, every_bytes=1)
    times = (TIME, TIME + SECOND, TIME)
    rows = [
        builder.add(offset, replace(PLAIN, last_time=time)) for offset, time in enumerate(times)
    ]
    assert [one.time_before for one in rows if one] == [7, TIME, TIME + SECOND]


def test_rows_round_trip() -> None:
    rows = [row(offset) for offset in (0, 1000, 1 << 40)]
    store = MemoryStore.holding({"x.idx": b"".join(one.encode() for one in rows)})
    assert index.read(store, "x.idx") == rows
    assert all(len(one.encode()) == index.ROW_BYTES for one in rows)


def test_reading_stops_at_the_first_damaged_row() -> None:
    data = b"".join(row(offset).encode() for offset in range(3))
    for at in range(len(data)):
        broken = data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :]
        found = index.read(MemoryStore.holding({"x.idx": broken}), "x.idx")
        assert found == [row(offset) for offset in range(at // index.ROW_BYTES)]


def test_a_torn_row_is_ignored() -> None:
    data = row(0).encode() + row(1).encode()
    for size in range(index.ROW_BYTES, len(data)):
        assert index.read(MemoryStore.holding({"x.idx": data[:size]}), "x.idx") == [row(0)]


def test_a_missing_index_is_empty() -> None:
    assert index.read(MemoryStore(), "x.idx") == []
