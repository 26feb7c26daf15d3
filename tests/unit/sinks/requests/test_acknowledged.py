"""What was accepted is skipped by the next attempt."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tailrace.message import places_of
from tailrace.position import ORIGIN
from tailrace.sinks.requests import acknowledged
from tailrace.sinks.requests.acknowledged import Acknowledged
from tests.unit.sinks.rows import position, rows

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    import pytest


def opened(
    folder: Path | None, after: int = -1, *, history: str = "a", lane: int = 0
) -> Acknowledged:
    made = Acknowledged(folder, history=history, lane=lane)
    made.open(ORIGIN if after < 0 else position(after))
    return made


def numbers(batch: pa.RecordBatch) -> list[int]:
    return [int(value.partition(b"\r")[0]) for value in batch["payload"].to_pylist()]


def test_a_replay_skips_what_was_accepted(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.note(rows([0, 3]))
    first.note(rows([5]))
    assert numbers(first.missing(rows(range(7)))) == list(range(7))
    second = opened(tmp_path)
    assert numbers(second.missing(rows(range(7)))) == [1, 2, 4, 6]
    second.note(rows([1]))
    assert numbers(opened(tmp_path).missing(rows(range(7)))) == [2, 4, 6]


def test_the_next_batch_forgets_the_last(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.note(rows(range(4)))
    opened(tmp_path, after=3).note(rows([5]))
    [file] = tmp_path.iterdir()
    assert file.stat().st_size == 16
    assert numbers(opened(tmp_path, after=3).missing(rows(range(4, 7)))) == [4, 6]


def test_lanes_know_of_each_other(tmp_path: Path) -> None:
    opened(tmp_path, lane=0).note(rows([0]))
    opened(tmp_path, lane=1).note(rows([1]))
    assert numbers(opened(tmp_path, lane=0).missing(rows(range(3)))) == [2]


def test_positions_of_another_history_mean_nothing(tmp_path: Path) -> None:
    opened(tmp_path, history="a").note(rows([0]))
    assert numbers(opened(tmp_path, history="a+1").missing(rows(range(2)))) == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["a+1-0.accepted"]


def test_an_incomplete_note_does_not_count(tmp_path: Path) -> None:
    opened(tmp_path).note(rows([0, 1]))
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    assert numbers(opened(tmp_path).missing(rows(range(3)))) == [1, 2]


def test_without_a_folder_nothing_is_noted() -> None:
    known = opened(None)
    known.note(rows([0]))
    assert known.known(rows([0])) is None


def test_an_answer_that_comes_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN an answer that a thread is about to note WHEN the file is closed, and its descriptor is
    that of another file THEN nothing is written there."""
    known = opened(tmp_path / "noted")
    other = tmp_path / "other"
    with ExitStack() as stack:

        def interrupted(batch: pa.RecordBatch) -> object:
            known.close()
            stack.enter_context(other.open("wb"))
            return places_of(batch)

        monkeypatch.setattr(acknowledged, "places_of", interrupted)
        known.note(rows([0]))
    assert other.read_bytes() == b""
