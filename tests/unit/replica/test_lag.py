"""What the log keeps for a follower."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.config import load
from tailrace.log import retention
from tailrace.log.format.segment import list_segments
from tailrace.log.reader import Log
from tailrace.replica.lag import Lag
from tailrace.replica.outgoing import Outgoing
from tests.fix_log import TestLog, transaction

if TYPE_CHECKING:
    import pytest

    from tailrace.testing.store import MemoryStore

SETTINGS = load(None, {}).replication


def log_of_segments() -> TestLog:
    made = TestLog(segment_bytes=2000)
    for number in range(40):
        made.append(transaction(number))
    return made


def test_the_segment_of_the_follower_s_mark_is_kept() -> None:
    """GIVEN a follower that has a segment to its end THEN the segment stays: the leader compares
    the follower's mark with it."""
    made = log_of_segments()
    first, second, *_ = list_segments(made.store)
    name = list_segments(made.store)[1]
    end = Outgoing(made.store, 2, 0)._mark_at_end(name, made.store.size(name.file))
    assert end is not None
    lag = Lag(made.store, SETTINGS)
    lag.held = end
    position = lag.measure().position
    assert position is not None
    assert Log(made.store).header(second).base == position
    assert retention.before(made.store, end.position) == [first, second]
    assert retention.before(made.store, position) == [first]


def test_a_segment_that_is_deleted_while_its_size_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GIVEN a follower that was given up THEN the log may be deleted at any time."""
    made = log_of_segments()
    first, *_ = list_segments(made.store)
    lag = Lag(made.store, SETTINGS)
    end = Outgoing(made.store, 1, 0)._mark_at_end(first, made.store.size(first.file))
    assert end is not None
    lag.held = replace(end, offset=0)
    size = type(made.store).size

    def gone(store: MemoryStore, name: str) -> int:
        if name == first.file:
            raise FileNotFoundError(name)
        return size(store, name)

    monkeypatch.setattr(type(made.store), "size", gone)
    assert lag.measure().bytes is not None
