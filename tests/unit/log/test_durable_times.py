"""When positions became durable: what a reader makes of the notes of capture."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from tailrace.log import durable_times
from tailrace.log.durable_times import FILE_BYTES, NAME, RING_NOTES, DurableTimes, waits_us
from tailrace.position import Lsn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


SECOND = 1_000_000
END = Lsn(1 << 60)


def note(folder: Path, notes: Sequence[tuple[int, int]], end: Lsn = END) -> None:
    times = DurableTimes.open(folder, end)
    for lsn, time_us in notes:
        times.note(Lsn(lsn), time_us)
    times.close()


def waits(folder: Path, lsns: Sequence[int], now_us: int) -> list[int]:
    notes = durable_times.read(folder)
    assert notes is not None
    return list(waits_us(notes, np.array(lsns, np.uint64), now_us).tolist())


def test_a_change_waits_since_the_first_note_that_covers_it(tmp_path: Path) -> None:
    note(tmp_path, [(100, 10), (200, 25), (300, 40)])
    assert waits(tmp_path, [50, 100, 101, 101, 200, 300], 50) == [10, 25, 25, 25, 40, 40]
    assert waits(tmp_path, [150], 50) == [25]
    # The clock was set back: never below zero.
    assert waits(tmp_path, [150], 20) == [0]


def test_what_no_note_covers_is_unknown(tmp_path: Path) -> None:
    assert durable_times.read(tmp_path) is None
    note(tmp_path, [])
    assert durable_times.read(tmp_path) is None
    note(tmp_path, [(100, 10)])
    assert waits(tmp_path, [100, 101], 50) == [40]
    assert waits(tmp_path, [101], 50) == []
    assert waits(tmp_path, [], 50) == []


def test_random_notes_as_one_by_one(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    notes, lsn, time_us = [], 0, 0
    for _ in range(500):
        lsn, time_us = lsn + chance.randint(1, 5), time_us + chance.randint(0, 100)
        notes.append((lsn, time_us))
    note(tmp_path, notes)
    lsns = sorted(chance.choices(range(lsn + 10), k=300))
    found = waits(tmp_path, lsns, 100_000)
    covering = [next((at for end, at in notes if end >= each), None) for each in lsns]
    assert found == sorted(100_000 - at for at in covering if at is not None)


def test_older_notes_are_a_second_apart(tmp_path: Path) -> None:
    """GIVEN more notes than the file holds WHEN a change is older than the last ones THEN its time
    is known to the second, and of one before all notes that it is older than these."""
    every_us, count = 1000, 3 * RING_NOTES
    note(tmp_path, [(lsn, lsn * every_us) for lsn in range(1, count + 1)])
    notes = durable_times.read(tmp_path)
    assert notes is not None
    assert (np.diff(notes.lsns.astype(np.int64)) > 0).all()
    now_us = count * every_us
    for lsn in (count, count - 100, count - RING_NOTES + 100):
        assert waits(tmp_path, [lsn], now_us) == [(count - lsn) * every_us]
    [found] = waits(tmp_path, [500], now_us)
    assert 0 <= now_us - 500 * every_us - found <= SECOND


def test_notes_continue_after_a_restart(tmp_path: Path) -> None:
    note(tmp_path, [(100, 10)])
    note(tmp_path, [(100, 15), (200, 20)], end=Lsn(108))
    assert waits(tmp_path, [100, 200], 50) == [30, 40]
    assert (tmp_path / NAME).stat().st_size == FILE_BYTES


def test_notes_of_another_log_are_dropped(tmp_path: Path) -> None:
    """GIVEN a log that was restored to an earlier position."""
    note(tmp_path, [(100, 10), (500, 20)])
    note(tmp_path, [(200, 30)], end=Lsn(150))
    assert waits(tmp_path, [100, 200], 50) == [20, 20]


def test_a_damaged_file_is_unknown_and_replaced(tmp_path: Path) -> None:
    for content in (b"", b"x" * FILE_BYTES, b"TRtimes1"):
        (tmp_path / NAME).write_bytes(content)
        assert durable_times.read(tmp_path) is None
        note(tmp_path, [(100, 10)])
        assert waits(tmp_path, [100], 50) == [40]
