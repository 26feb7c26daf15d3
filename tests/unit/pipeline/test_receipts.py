"""What a task counts of its deliveries, compared with counting row by row."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.log.durable_times import DurableTimes
from tailrace.message import MESSAGES
from tailrace.pipeline.latencies import Clock, Latencies
from tailrace.pipeline.receipts import Tally
from tailrace.position import READS, Lsn
from tailrace.sinks.contract import Receipt
from tests.unit.sinks.rows import FIRST_LSN, position, rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SECOND = 1_000_000


def taken(
    numbers: Iterable[int], *, committed_us: int, ordinal: int | None = None
) -> pa.RecordBatch:
    batch = rows(numbers)
    columns = {"committed_at": pa.array([committed_us] * batch.num_rows, pa.int64())}
    if ordinal is not None:
        columns["ordinal"] = pa.array([ordinal] * batch.num_rows, pa.uint64())
    for name, values in columns.items():
        batch = batch.set_column(MESSAGES.get_field_index(name), MESSAGES.field(name), values)
    return batch


def test_every_acknowledged_change_is_in_the_histograms(tmp_path: Path) -> None:
    """GIVEN changes of an hour ago that became durable a minute ago THEN they were delivered after
    an hour, of which they were a minute in the log; the sum is exact enough to tell them apart."""
    now_us = time.time_ns() // 1000
    times = DurableTimes.open(tmp_path, Lsn(1 << 60))
    times.note(position(99).lsn, now_us - 60 * SECOND)
    tally = Tally(tmp_path)
    tally.take(taken(range(10), committed_us=now_us - 3600 * SECOND))
    tally.add(Receipt(messages=10, bytes=100))
    [row] = tally.row(2).to_pylist()
    found = Latencies.parse(row["latencies"])
    assert (row["lane"], row["messages"], found.delivery.count, found.internal.count) == (
        2,
        10,
        10,
        10,
    )
    assert 36000 <= found.delivery.seconds < 36600
    assert 600 <= found.internal.seconds < 1200


def test_what_is_not_decided_counts_later(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    tally.take(taken(range(9), committed_us=5))
    tally.add(Receipt(messages=4, upto=position(3), failed=2))
    assert Latencies.parse(tally.progress("0/1.0").latencies).delivery.count == 4
    tally.take(taken(range(9, 12), committed_us=5))
    tally.add(Receipt(messages=8, failed=1))
    noted = tally.progress("0/2.0")
    assert Latencies.parse(noted.latencies).delivery.count == 12
    assert (noted.messages, noted.failed, tally.failed) == (12, 3, 3)


def test_rows_of_a_backfill_have_no_latency(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    tally.take(taken(range(3), committed_us=0, ordinal=READS + 1))
    tally.add(Receipt(messages=3))
    noted = tally.progress("0/1.0")
    assert (noted.messages, noted.latencies, noted.p50_us) == (3, None, None)


def test_without_notes_of_the_log_only_the_delivery_is_known(tmp_path: Path) -> None:
    for log in (None, tmp_path):
        clock = Clock(log, now_us=lambda: 10)
        clock.note(np.array([3, 4], np.int64), np.array([FIRST_LSN] * 2, np.uint64))
        found = clock.count()
        assert (found.delivery.count, found.delivery.seconds) == (2, 13e-6)
        assert found.internal.count == 0
        assert clock.percentiles_us == (7, 7)


def test_percentiles_are_of_what_came_since_the_last_note() -> None:
    clock = Clock(None, now_us=lambda: 1000)
    lsns = np.arange(100, dtype=np.uint64)
    clock.note(np.arange(1000, 900, -1), lsns)
    clock.count()
    assert clock.percentiles_us == (50, 99)
    clock.note(np.full(100, 1), lsns)
    assert clock.count().delivery.count == 200
    assert clock.percentiles_us == (999, 999)
    # A server's clock that is ahead.
    clock.note(np.full(3, 2000), lsns[:3])
    clock.count()
    assert clock.percentiles_us == (0, 0)
