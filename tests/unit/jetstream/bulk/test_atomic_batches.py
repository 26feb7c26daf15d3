from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import structlog
from hypothesis import given
from hypothesis import strategies as st

from tailrace.jetstream.bulk import atomic_batches as transactions
from tailrace.jetstream.bulk.atomic_batches import MAX_ROWS, Run, Transactions, starts
from tests.unit.sinks.rows import rows

if TYPE_CHECKING:
    import pytest


def of_sizes(sizes: list[int]) -> pa.RecordBatch:
    """Transactions of these sizes, one after another."""
    batch = rows(range(sum(sizes)), per=1)
    lsns = np.repeat(np.arange(len(sizes)) + 100, sizes)
    return batch.set_column(4, batch.schema.field(4), pa.array(lsns, pa.uint64()))


def collected(batch: pa.RecordBatch, cuts: list[int]) -> list[Run]:
    collector = Transactions()
    edges = sorted({0, batch.num_rows, *(cut % (batch.num_rows + 1) for cut in cuts)})
    runs: list[Run] = []
    for start, end in itertools.pairwise(edges):
        runs += collector.take(batch.slice(start, end - start))
    return [*runs, *collector.flush()]


sizes = st.lists(st.integers(1, 5) | st.sampled_from([MAX_ROWS, MAX_ROWS + 1, 2500]), max_size=6)


@given(sizes, st.lists(st.integers(0, 10**5), max_size=5))
def test_transactions_stay_whole_and_in_order(sizes: list[int], cuts: list[int]) -> None:
    batch = of_sizes(sizes)
    runs = collected(batch, cuts)
    ids = [name for run in runs for name in run.rows.column("id").to_pylist()]
    assert ids == batch.column("id").to_pylist()
    whole = {100 + at: size for at, size in enumerate(sizes)}
    for run in runs:
        lsns = run.rows.column("lsn").to_pylist()
        for lsn in set(lsns):
            if run.atomic:
                assert lsns.count(lsn) == whole[lsn] <= MAX_ROWS
            else:
                assert whole[lsn] > MAX_ROWS


def test_a_transaction_too_large_to_be_atomic_is_logged_once() -> None:
    with structlog.testing.capture_logs() as logs:
        runs = collected(of_sizes([1, 3500, 1]), [1200, 1300, 2600])
    assert [line["event"] for line in logs] == ["nats.transaction_not_atomic"]
    assert [run.atomic for run in runs if run.rows.num_rows == 1] == [True, True]


def test_a_transaction_with_too_many_bytes_is_not_atomic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_MAX_BYTES", 100)
    runs = collected(of_sizes([2, 20, 2]), [])
    assert [(run.rows.num_rows, run.atomic) for run in runs] == [(2, True), (20, False), (2, True)]


def test_where_transactions_begin() -> None:
    assert starts(of_sizes([2, 1, 3])).tolist() == [0, 2, 3]
    assert starts(of_sizes([])).tolist() == []
