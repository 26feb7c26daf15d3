"""How long transactions are collected, by the rate of the stream."""

from __future__ import annotations

import pytest

from tailrace.capture.load import Load


def stream(load: Load, now: float, *, every_s: float, size: int, count: int) -> float:
    for _ in range(count):
        now += every_s
        load.note(size, now)
    return now


@pytest.mark.parametrize(
    ("every_s", "size", "collect_s"),
    [
        (0.001, 150, 0.0),  # 1,000 changes per second
        (0.001, 1_500, 0.0015),  # 10,000
        (0.002, 30_000, 0.015),  # 100,000
        (0.02, 2 << 20, 0.1),
    ],
)
def test_a_fast_stream_is_collected_longer(every_s: float, size: int, collect_s: float) -> None:
    load = Load(100.0)
    assert load.collect_s(100.0) == 0.0
    now = stream(load, 100.0, every_s=every_s, size=size, count=2000)
    assert load.collect_s(now) == pytest.approx(collect_s, rel=0.1)


def test_a_transaction_after_a_pause_is_not_delayed() -> None:
    load = Load(100.0)
    now = stream(load, 100.0, every_s=0.01, size=1 << 20, count=100)
    assert load.collect_s(now) > 0.05
    assert load.collect_s(now + 1) == 0.0
    load.note(150, now + 1)
    assert load.collect_s(now + 1) == 0.0


def test_one_large_transaction_is_no_load() -> None:
    load = Load(100.0)
    now = stream(load, 100.0, every_s=0.01, size=150, count=100)
    load.note(50_000, now + 0.01)
    assert load.collect_s(now + 0.01) == 0.0


def test_two_notes_at_one_moment() -> None:
    load = Load(100.0)
    load.note(1 << 20, 100.0)
    load.note(1 << 20, 100.0)
    assert 0 <= load.collect_s(100.0) < 1
