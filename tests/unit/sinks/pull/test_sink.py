"""The sink: positions, fencing, space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import ConfigError, DivergedError, SinkFencedError, SinkFullError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.pull.database import in_folder
from tailrace.sinks.pull.listing import Listing
from tailrace.sinks.pull.settings import PullSink
from tailrace.sinks.pull.sink import Pull
from tests.unit.sinks.rows import position, rows, write

if TYPE_CHECKING:
    from pathlib import Path


def made(folder: Path, *, history: str = "log", lane: int = 0, lanes: int = 1, **keys: Any) -> Pull:
    settings = PullSink.model_validate({"type": "pull", **keys})
    where = Lane(pipeline="p", folder=folder, history=history, number=lane, lanes=lanes)
    sink = Pull(settings, where)
    sink.open(ORIGIN)
    return sink


def stored(folder: Path) -> int:
    with Listing(in_folder(folder)) as listing:
        return listing.totals().messages


def test_a_batch_is_divided_into_transactions_that_count_at_once(tmp_path: Path) -> None:
    sink = made(tmp_path, batch_rows=10)
    write(sink, rows(range(25)))
    assert stored(tmp_path) == 20
    sink.close()
    again = made(tmp_path, batch_rows=10)
    write(again, rows(range(25)))
    receipt = again.flush()
    assert (receipt.messages, receipt.duplicates) == (5, 20)
    assert stored(tmp_path) == 25
    again.close()


def test_transactions_are_limited_in_bytes(tmp_path: Path) -> None:
    sink = made(tmp_path, batch_bytes=250)
    write(sink, rows(range(10), size=100))
    assert 0 < stored(tmp_path) < 10
    sink.flush()
    assert stored(tmp_path) == 10
    sink.close()


def test_a_sink_that_was_replaced_is_fenced(tmp_path: Path) -> None:
    old = made(tmp_path)
    write(old, rows(range(5)))
    new = made(tmp_path)
    write(new, rows(range(5)))
    assert new.flush().messages == 5
    with pytest.raises(SinkFencedError):
        old.flush()
    assert stored(tmp_path) == 5
    new.close()


def test_lanes_have_positions_of_their_own(tmp_path: Path) -> None:
    first, second = (made(tmp_path, lane=lane, lanes=2) for lane in range(2))
    write(first, rows([0, 2, 4]))
    write(second, rows([1, 3]))
    assert (first.flush().messages, second.flush().messages) == (3, 2)
    first.open(position(4))
    second.open(position(4))
    write(second, rows([5]))
    assert second.flush().messages == 1
    first.close()
    second.close()


def test_the_position_of_another_log_is_refused_before_it_fences(tmp_path: Path) -> None:
    sink = made(tmp_path)
    write(sink, rows(range(3)))
    sink.flush()
    with pytest.raises(DivergedError, match="the pull store holds the position"):
        made(tmp_path, history="another")
    sink.open(position(2))
    write(sink, rows(range(3, 6)))
    assert sink.flush().messages == 3
    sink.close()


def test_a_full_store_is_reported(tmp_path: Path) -> None:
    sink = made(tmp_path, max_bytes=1000, max_message_bytes=1000, batch_rows=1, timeout_s=0)
    with pytest.raises(SinkFullError, match="max_bytes is 1000") as raised:
        write(sink, rows(range(9), size=400))
    assert "raise `max_bytes`" in raised.value.hint
    assert stored(tmp_path) == 2


def test_a_sink_needs_a_folder() -> None:
    sink = Pull(PullSink.model_validate({"type": "pull"}), Lane(pipeline="p"))
    with pytest.raises(ConfigError, match="needs a data folder"):
        sink.open(ORIGIN)
