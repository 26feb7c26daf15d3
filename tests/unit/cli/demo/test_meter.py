"""Counts, rates and latencies, with times that the test chooses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.change import Op
from tailrace.cli.demo.arrival import Arrival
from tailrace.cli.demo.meter import HISTORY_S, Latency, Meter, percentile


def arrival(at: float, *, latency_s: float = 0.5, op: Op = Op.INSERT, table: str = "t") -> Arrival:
    return Arrival(
        op=op,
        table=table,
        data={},
        old={},
        unchanged=(),
        committed_at=at - latency_s,
        received_at=at,
    )


def test_counts_are_by_table_and_operation() -> None:
    meter = Meter()
    for op in (Op.INSERT, Op.INSERT, Op.DELETE):
        meter.note(arrival(1000, op=op))
    meter.note(arrival(1000, op=Op.MESSAGE, table="shop.note"))
    assert meter.counts == {
        ("t", Op.INSERT): 2,
        ("t", Op.DELETE): 1,
        ("shop.note", Op.MESSAGE): 1,
    }
    assert (meter.received, meter.rows) == (4, 3)


def test_the_ten_newest_changes_newest_first() -> None:
    meter = Meter()
    for at in range(1000, 1030):
        meter.note(arrival(at))
    assert [found.received_at for found in meter.recent] == list(range(1029, 1019, -1))


def test_latency_covers_the_window() -> None:
    meter = Meter()
    assert meter.latency(1000) is None
    meter.note(arrival(1000, latency_s=4))
    meter.note(arrival(1008, latency_s=2))
    assert meter.latency(1009) == Latency(p50_ms=2000, p99_ms=4000)
    assert meter.latency(1011) == Latency(p50_ms=2000, p99_ms=2000)
    assert meter.latency(1030) is None


def test_changes_committed_before_the_start_have_no_latency() -> None:
    meter = Meter()
    meter.note(arrival(1000, latency_s=20))
    meter.begin(1000.5)
    meter.note(arrival(1001, latency_s=15))
    assert meter.latency(1001) is None
    meter.note(arrival(1002, latency_s=1))
    assert meter.latency(1002) == Latency(p50_ms=1000, p99_ms=1000)
    assert meter.received == 3


def test_the_rate_covers_whole_seconds_since_the_start() -> None:
    meter = Meter()
    meter.begin(1000)
    for at in (1000.1, 1000.2, 1001.5, 1001.6, 1002.1):
        meter.note(arrival(at))
    assert meter.per_second(1002.2) == 2
    assert meter.per_second(1015) == 0


def test_the_history_has_one_value_per_second() -> None:
    meter = Meter()
    for at in (1000.1, 1000.9, 1002.0, 1003.0):
        meter.note(arrival(at))
    history = meter.history(1003.5)
    assert len(history) == HISTORY_S
    assert history[-3:] == (2, 0, 1)
    assert sum(history) == 3
    assert meter.history(1003.5 + HISTORY_S + 2) == (0,) * HISTORY_S


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_a_percentile_is_exceeded_by_the_rest_only(values: list[float], percent: int) -> None:
    found = percentile(sorted(values), percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= len(values) * percent
    assert sum(value < found for value in values) * 100 < len(values) * percent
