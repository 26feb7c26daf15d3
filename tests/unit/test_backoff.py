from __future__ import annotations

import random

from tailrace.backoff import Backoff


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_delays_double_up_to_the_max() -> None:
    backoff = Backoff(first_s=0.5, max_s=6.0, jitter=0.0)
    assert [backoff.next_s() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 6.0, 6.0]
    assert backoff.failures == 6


def test_the_first_retry_may_be_at_once() -> None:
    backoff = Backoff(first_s=1.0, max_s=3.0, jitter=0.0, at_once=True)
    for _ in range(2):
        assert [backoff.next_s() for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]
        backoff.reset()


def test_a_long_outage_does_not_overflow() -> None:
    backoff = Backoff(first_s=0.5, max_s=6.0, jitter=0.0)
    assert [backoff.next_s() for _ in range(5000)][-1] == 6.0


def test_progress_starts_over() -> None:
    backoff = Backoff(first_s=1.0, max_s=60.0, jitter=0.0)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next_s() == 1.0


def test_an_attempt_that_ran_longer_than_the_max_delay_is_progress() -> None:
    clock = Clock()
    backoff = Backoff(first_s=1.0, max_s=10.0, jitter=0.0, clock=clock)
    assert [backoff.next_s() for _ in range(3)] == [1.0, 2.0, 4.0]
    backoff.running()
    clock.now += 10.1
    assert backoff.next_s() == 1.0


def test_an_attempt_that_failed_soon_is_no_progress() -> None:
    clock = Clock()
    backoff = Backoff(first_s=1.0, max_s=10.0, jitter=0.0, clock=clock)
    backoff.next_s()
    backoff.running()
    clock.now += 9.9
    assert backoff.next_s() == 2.0
    # The time of the last attempt does not count for the next one.
    clock.now += 60.0
    assert backoff.next_s() == 4.0


def test_jitter_stays_within_its_share() -> None:
    backoff = Backoff(first_s=1.0, max_s=1.0, jitter=0.2, uniform=random.Random(7).uniform)
    delays = [backoff.next_s() for _ in range(500)]
    assert 0.8 <= min(delays) < 0.85
    assert 1.15 < max(delays) <= 1.2
