"""Exactly once, whatever dies and wherever a replay is cut: at every step, and at random."""

from __future__ import annotations

import contextlib
import os
import random
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import DivergedError, SinkFencedError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane, Receipt
from tailrace.sinks.file.local import LocalFolder
from tailrace.sinks.file.settings import FileSink
from tailrace.sinks.file.sink import Files
from tests.unit.sinks.file.stores import DeadError, MortalStore, positions_in
from tests.unit.sinks.rows import position, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SEED = os.environ.get("TAILRACE_SEED")
STEPS = 50
"""More than any attempt below has."""


def die_at(step: int) -> Callable[[int], None]:
    def dies(operation: int) -> None:
        if operation == step:
            raise DeadError

    return dies


def sink_of(
    root: Path,
    *,
    number: int = 0,
    lanes: int = 1,
    history: str = "log",
    dies: Callable[[int], None] = lambda _: None,
    **keys: object,
) -> Files:
    settings = FileSink.model_validate({"type": "file", "url": str(root), **keys})
    lane = Lane(pipeline="p", number=number, lanes=lanes, history=history)
    return Files(settings, lane, lambda: MortalStore(LocalFolder(root), dies))


def deliver(sink: Files, numbers: Iterable[int], *, cut: int, after: int = -1) -> None:
    """A batch, which is flushed after every `cut` messages. Two folders."""
    sink.open(position(after) if after >= 0 else ORIGIN)
    chosen = list(numbers)
    for start in range(0, len(chosen), cut):
        part = chosen[start : start + cut]
        for number in part:
            sink.write(rows([number], destination=b"ab"[number % 2 : number % 2 + 1]))
        sink.flush(end=start + cut >= len(chosen))


def expected(numbers: Iterable[int]) -> list[tuple[int, int]]:
    return [(int(position(number).lsn), position(number).ordinal) for number in numbers]


def check(root: Path, numbers: Iterable[int]) -> None:
    assert sorted(positions_in(root)) == expected(numbers)
    left = [path for path in (root / "_tailrace").rglob("*") if path.suffix == ".tmp"]
    assert left == []


@pytest.mark.parametrize("recut", [2, 12])
def test_a_crash_at_every_step(tmp_path: Path, recut: int) -> None:
    """GIVEN a sink that dies at a step WHEN its batch is replayed with other cuts THEN every
    message is in one file, and what was in a file before is still in it."""
    survived = False
    for step in range(1, STEPS):
        root = tmp_path / str(step)
        first = sink_of(root, dies=die_at(step), roll_s=0)
        try:
            deliver(first, range(10), cut=3)
            survived = True
        except DeadError:
            pass
        before = {path: path.read_bytes() for path in root.rglob("*.parquet")}
        second = sink_of(root, roll_s=0)
        deliver(second, range(12), cut=recut)
        check(root, range(12))
        assert {path: path.read_bytes() for path in before} == before
        second.close()
        if survived:
            return
    pytest.fail(f"an attempt has more than {STEPS} steps")


def test_a_crash_of_the_sink_that_takes_over(tmp_path: Path) -> None:
    for first in range(1, 14, 2):
        for second in range(1, 9, 2):
            root = tmp_path / f"{first}-{second}"
            for step, cut in ((first, 3), (second, 4)):
                with contextlib.suppress(DeadError):
                    deliver(sink_of(root, dies=die_at(step), roll_s=0), range(8), cut=cut)
            last = sink_of(root)
            deliver(last, range(9), cut=9)
            check(root, range(9))


def test_a_worker_that_hangs_at_every_step(tmp_path: Path) -> None:
    """GIVEN a sink that hangs WHEN another one has replayed its batch and more THEN it is fenced,
    or it had already committed."""
    fenced = 0
    for step in range(1, 24):
        root = tmp_path / str(step)

        def successor(operation: int, at: int = step, root: Path = root) -> None:
            if operation == at:
                second = sink_of(root, roll_s=0)
                deliver(second, range(14), cut=4)
                second.close()

        first = sink_of(root, dies=successor, roll_s=0)
        try:
            deliver(first, range(10), cut=5)
        except SinkFencedError:
            fenced += 1
        first.close()
        third = sink_of(root)
        deliver(third, range(15), cut=15)
        check(root, range(15))
    assert fenced > 5


@pytest.mark.parametrize("lanes", [(2, 2), (3, 1), (1, 3), (3, 2)])
def test_lanes_that_join_in_a_replay(tmp_path: Path, lanes: tuple[int, int]) -> None:
    """GIVEN several lanes, some of which die WHEN the replay gives the messages to other lanes
    THEN every message is in one file."""
    seed = int(SEED) if SEED else random.SystemRandom().getrandbits(32)
    try:
        chance = random.Random(seed)
        for turn in range(8):
            _deliver_in_lanes(tmp_path / str(turn), chance, lanes)
    except AssertionError as error:
        raise AssertionError(f"TAILRACE_SEED={seed}") from error


def _deliver_in_lanes(root: Path, chance: random.Random, lanes: tuple[int, int]) -> None:
    for start in (0, 20):
        batch = range(start, start + 20)
        for _ in range(chance.randrange(3)):
            with contextlib.suppress(DeadError):
                _one_attempt(root, chance, lanes[0], batch, steps=60)
        _one_attempt(root, chance, lanes[1], batch, steps=0)
    # What dying lanes left is deleted when they take over.
    for number in range(lanes[1]):
        sink = sink_of(root, number=number, lanes=lanes[1])
        sink.open(position(39))
        sink.close()
    check(root, range(40))


def _one_attempt(
    root: Path, chance: random.Random, lanes: int, batch: range, *, steps: int
) -> None:
    """Deliver a batch in lanes that are chosen at random; each may die."""
    chosen = {number: chance.randrange(lanes) for number in batch}
    died = False
    for lane in chance.sample(range(lanes), lanes):
        own = [number for number in batch if chosen[number] == lane]
        if not own:
            continue
        dies = die_at(chance.randrange(1, steps)) if steps else die_at(0)
        sink = sink_of(root, number=lane, lanes=lanes, dies=dies, roll_s=0)
        try:
            deliver(sink, own, cut=chance.randrange(1, 8), after=batch[0] - 1)
            sink.close()
        except DeadError:
            died = True
    if died:
        raise DeadError


def test_another_history_is_diverged(tmp_path: Path) -> None:
    deliver(sink_of(tmp_path, history="one"), range(5), cut=5)
    with pytest.raises(
        DivergedError, match="holds the position of lane 0 in the log one"
    ) as caught:
        sink_of(tmp_path, history="two").open(ORIGIN)
    assert "tailrace reset" in caught.value.hint


def test_a_reset_writes_other_files_and_finishes_the_old_ones(tmp_path: Path) -> None:
    """GIVEN a sink that died before it moved its files WHEN the pipeline is reset THEN they are
    moved, and the same positions are written again."""
    for step in range(1, 20):
        root = tmp_path / str(step)
        with contextlib.suppress(DeadError):
            deliver(sink_of(root, history="one", dies=die_at(step)), range(6), cut=6)
        committed = any(
            "files" in path.read_text() and "parquet" in path.read_text()
            for path in root.rglob("*.commit")
        )
        deliver(sink_of(root, history="two+1"), range(6), cut=6)
        times = 2 if committed or len(positions_in(root)) > 6 else 1
        check(root, sorted([*range(6)] * times))
        deliver(sink_of(root, history="two+1"), range(6), cut=2)
        check(root, sorted([*range(6)] * times))


@pytest.mark.parametrize("parked_again", [True, False])
def test_a_message_that_was_parked_is_found_by_a_replay(tmp_path: Path, parked_again: bool) -> None:
    """GIVEN a sink that was not given a message WHEN the batch is replayed THEN the message is
    refused again, or written."""
    first = sink_of(tmp_path, max_message_bytes=100)
    first.open(ORIGIN)
    assert list(first.inspect(rows(range(4), size=200))) == [0, 1, 2, 3]
    assert first.inspect(rows(range(4, 8))) == {}
    first.write(rows(range(4, 6)))
    first.write(rows(range(6, 8)))
    assert first.flush().messages == 4
    second = sink_of(tmp_path, max_message_bytes=100 if parked_again else 1000)
    second.open(ORIGIN)
    refused = second.inspect(rows(range(8), size=200))
    assert list(refused) == ([0, 1, 2, 3] if parked_again else [])
    second.write(rows(range(4 if parked_again else 0, 10)))
    receipt = second.flush()
    assert (receipt.messages, receipt.duplicates) == (2 if parked_again else 6, 4)
    check(tmp_path, range(4 if parked_again else 0, 10))
    # A later batch needs the position only.
    deliver(second, range(10, 12), cut=2, after=9)
    record = next(tmp_path.rglob("*.commit")).read_text()
    assert '"beyond": ""' in record
    assert str(position(11)) in record


def test_an_open_batch_completes_files_when_they_are_due(tmp_path: Path) -> None:
    now = 0.0
    sink = sink_of(tmp_path, roll_s=10, roll_rows=7)
    sink._clock = lambda: now
    sink.open(ORIGIN)
    sink.write(rows(range(3)))
    assert sink.flush(end=False) == Receipt(upto=ORIGIN)
    now = 9.0
    sink.write(rows(range(3, 5)))
    assert sink.flush(end=False) == Receipt(upto=ORIGIN)
    now = 10.0
    receipt = sink.flush(end=False)
    assert (receipt.messages, receipt.upto) == (5, None)
    sink.write(rows(range(5, 12)))
    sink.write(rows(range(12, 13)))
    receipt = sink.flush(end=False)
    assert (receipt.messages, receipt.upto) == (7, position(11))
    assert sink.flush().messages == 1
    assert len(list(tmp_path.rglob("*.parquet"))) == 3
    check(tmp_path, range(13))


def test_records_that_another_lane_replaces_meanwhile(tmp_path: Path) -> None:
    """GIVEN lanes that commit WHEN another lane takes over at any step THEN it reads the newer
    record of theirs."""
    for step in range(1, 12):
        root = tmp_path / str(step)
        busy = sink_of(root, number=1, lanes=2)
        deliver(busy, range(1, 8, 2), cut=4)

        def commit(operation: int, at: int = step, busy: Files = busy) -> None:
            if operation == at:
                deliver(busy, range(11, 18, 2), cut=4, after=9)

        deliver(sink_of(root, number=0, lanes=2, dies=commit), range(10, 19, 2), cut=9, after=9)
        check(root, sorted([*range(1, 8, 2), *range(11, 18, 2), *range(10, 19, 2)]))
