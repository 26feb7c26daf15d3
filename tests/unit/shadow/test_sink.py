"""The pure parts of the shadow's sink; its contract is in tests/contract/test_record_sinks.py."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tailrace.encode.records import RECORDS
from tailrace.shadow.sink import _by_partition, _outgoing, _runs


def batch(*rows: tuple[int, int, int], headers: str | None = None) -> pa.RecordBatch:
    values = [
        {
            "topic": topic, "partition": partition, "offset": offset, "timestamp": 1000 + offset,
            "key": b"k%d" % offset, "value": b"v%d" % offset, "headers": headers,
            "lsn": 1, "ordinal": 0, "committed_at": 0,
        }
        for topic, partition, offset in rows
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(values, schema=RECORDS)


@pytest.mark.parametrize(
    ("offsets", "runs"),
    [
        ([5], [(5, 6)]),
        ([5, 6, 7], [(5, 8)]),
        ([5, 6, 7, 9], [(5, 8), (9, 10)]),
        ([1, 3, 5], [(1, 2), (3, 4), (5, 6)]),
    ],
)
def test_runs_of_consecutive_offsets(offsets: list[int], runs: list[tuple[int, int]]) -> None:
    assert list(_runs(np.array(offsets))) == runs


def test_rows_are_grouped_by_partition_in_order() -> None:
    mixed = batch((1, 0, 5), (2, 3, 0), (1, 0, 6), (1, 1, 7), (2, 3, 1))
    groups = {key: rows["offset"].to_pylist() for key, rows in _by_partition(mixed)}
    assert groups == {(1, 0): [5, 6], (1, 1): [7], (2, 3): [0, 1]}


def test_a_batch_of_one_partition_is_not_copied() -> None:
    rows = batch((1 << 30, 2, 5), (1 << 30, 2, 6))
    ((key, same),) = _by_partition(rows)
    assert key == (1 << 30, 2)
    assert same is rows


def test_messages_for_kafka() -> None:
    assert list(_outgoing("t", 4, batch((1, 4, 7)))) == [("t", b"v7", b"k7", 4, b"7", 1007, None)]
    with_headers = batch((1, 4, 7), headers='[["a", "1"]]')
    assert next(_outgoing("t", 4, with_headers))[6] == [("a", b"1")]
