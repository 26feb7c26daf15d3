"""The loop that publishes schemas, by a clock that only waiting advances."""

from __future__ import annotations

import itertools
import threading

from tailrace.errors import SinkUnreachableError
from tailrace.schemas.follow import follow


class FakeTime(threading.Event):
    """A stop event whose `wait` advances the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.is_set()


def test_a_failure_is_retried_and_the_start_is_published_once() -> None:
    time = FakeTime()
    calls: list[float] = []

    def publish() -> None:
        calls.append(time.now)
        if len(calls) == 1:
            raise SinkUnreachableError("not yet")
        time.set()

    follow([publish], lambda: False, time, clock=lambda: time.now)
    assert calls == [0.0, calls[1]]
    assert 1.0 <= calls[1] <= 2.0


def test_a_change_is_published_at_once() -> None:
    time = FakeTime()
    changes = iter([False, False, True])
    calls: list[float] = []

    def changed() -> bool:
        change = next(changes, None)
        if change is None:
            time.set()
        return bool(change)

    follow([lambda: calls.append(time.now)], changed, time, clock=lambda: time.now)
    assert calls == [0.0, 3.0]


def test_everything_is_published_once_a_minute() -> None:
    time = FakeTime()
    calls: list[float] = []

    def publish() -> None:
        calls.append(time.now)
        if len(calls) == 3:
            time.set()

    follow([publish], lambda: False, time, clock=lambda: time.now)
    assert calls == [0.0, 60.0, 120.0]


def test_changes_wait_for_the_retry_after_a_failure() -> None:
    time = FakeTime()
    calls: list[float] = []

    def publish() -> None:
        calls.append(time.now)
        if len(calls) == 4:
            time.set()
        raise SinkUnreachableError("not yet")

    follow([publish], lambda: True, time, clock=lambda: time.now)
    delays = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert delays == sorted(delays)
    assert delays[-1] >= 3.0


def test_a_failed_look_for_changes_is_ignored() -> None:
    time = FakeTime()
    calls: list[float] = []

    def changed() -> bool:
        raise SinkUnreachableError("no answer")

    def publish() -> None:
        calls.append(time.now)
        if len(calls) == 2:
            time.set()

    follow([publish], changed, time, clock=lambda: time.now)
    assert calls == [0.0, 60.0]
