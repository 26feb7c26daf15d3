from __future__ import annotations

import pytest

from tailrace.schemas.schedule import INTERVAL_S, CatalogSchedule


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_first_read_is_due_and_the_next_after_the_interval() -> None:
    clock = Clock()
    schedule = CatalogSchedule(clock)
    assert schedule.due()
    with schedule.reading():
        clock.now += 0.1
    assert not schedule.due()
    assert schedule.wait_s() == pytest.approx(INTERVAL_S - 0.1)
    clock.now = 100 + INTERVAL_S
    assert schedule.due()
    assert schedule.wait_s() == 0


def test_a_slow_read_makes_reads_rarer() -> None:
    clock = Clock()
    schedule = CatalogSchedule(clock)
    with schedule.reading():
        clock.now += 3
    assert schedule.wait_s() == pytest.approx(57)


def test_a_failed_read_is_not_repeated_at_once() -> None:
    clock = Clock()
    schedule = CatalogSchedule(clock)
    with pytest.raises(OSError, match="down"), schedule.reading():
        raise OSError("down")
    assert not schedule.due()


def test_a_request_makes_a_read_due_even_during_a_read() -> None:
    schedule = CatalogSchedule(Clock())
    with schedule.reading():
        pass
    schedule.request()
    assert schedule.due()
    with schedule.reading():
        schedule.request()
    assert schedule.due()
