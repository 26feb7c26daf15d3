"""Signals wake the fetches that wait for a partition."""

from __future__ import annotations

from tailrace.broker.broker import Signals


def test_only_watched_partitions_wake() -> None:
    signals = Signals()
    with signals.watch([(1, 0), (1, 1)]) as one, signals.watch([(1, 1), (2, 0)]) as other:
        signals.wake((1, 0))
        assert (one.is_set(), other.is_set()) == (True, False)
        one.clear()
        signals.wake((1, 1))
        assert (one.is_set(), other.is_set()) == (True, True)
        signals.wake((9, 9))


def test_all_are_woken_after_a_lost_connection() -> None:
    signals = Signals()
    with signals.watch([(1, 0)]) as one, signals.watch([(2, 0)]) as other:
        signals.wake_all()
        assert one.is_set()
        assert other.is_set()


def test_nothing_remains_after_a_fetch() -> None:
    signals = Signals()
    with signals.watch([(1, 0)]), signals.watch([(1, 0)]):
        pass
    assert signals._waiting == {}
    with signals.watch([]) as event:
        signals.wake_all()
        assert not event.is_set()
