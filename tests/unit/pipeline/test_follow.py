"""Following a log that grows, with a clock that the test moves."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from tailrace.decode.decoder import Decoder
from tailrace.pipeline import follow
from tailrace.pipeline.follow import LOOK_S, Following, Part
from tests.fix_log import TestLog, transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.position import Position


class Rig:
    """A log of two rows per transaction, and what follows it.

    Every look at the clock takes `step` seconds.
    """

    def __init__(self, *, step: float = 0.01) -> None:
        self.made = TestLog()
        self.log = self.made.log()
        self.now, self.step = 0.0, step
        self.asked: list[Position] = []
        self.slept: list[float] = []
        self.stops = False

    def clock(self) -> float:
        self.now += self.step
        return self.now

    def sleep(self, seconds: float) -> None:
        """Another transaction is written meanwhile."""
        self.slept.append(seconds)
        self.write(100 + len(self.slept))

    def ends(self, reached: Position) -> bool:
        self.asked.append(reached)
        return self.stops

    def write(self, *numbers: int) -> None:
        self.made.append_all(transaction(number) for number in numbers)

    def following(
        self,
        *,
        max_rows: int = 1000,
        max_s: float = 1000.0,
        near: bool = False,
        linger_s: float = 0.0,
        limit: Callable[[Position, Position], Position] = lambda _, upto: upto,
    ) -> Following:
        return Following(
            self.log,
            self.log.earliest(),
            wanted=lambda _: True,
            messages=lambda _: True,
            max_rows=max_rows,
            max_s=max_s,
            ends=self.ends,
            near=near,
            limit=limit,
            linger_s=linger_s,
            clock=self.clock,
            sleep=self.sleep,
        )


def rows(part: Part | None) -> list[tuple[int, int]]:
    """The positions of a part."""
    assert part is not None
    return [
        (int(lsn), int(ordinal))
        for group in part.groups
        for lsn, ordinal in zip(group.lsn, group.ordinal, strict=True)
    ]


def expected(*numbers: int) -> list[tuple[int, int]]:
    return [(int(transaction(number).lsn), row) for number in numbers for row in (0, 1)]


def test_changes_are_read_as_they_come() -> None:
    """None where the log has no more; `reached` is then what has been read."""
    rig = Rig()
    rig.write(0, 1)
    following = rig.following()
    parts = following.parts()
    assert rows(next(parts)) == expected(0, 1)
    assert next(parts) is None
    assert following.reached == rig.log.end().position
    rig.write(2)
    assert rows(next(parts)) == expected(2)
    assert next(parts) is None
    assert following.reached == rig.log.end().position


def test_the_parts_of_a_large_transaction() -> None:
    """Only the last one is whole, and `reached` never lies inside the transaction."""
    rig = Rig()
    rig.write(0)
    before = rig.log.end().position
    rig.made.append_pieces(transaction(1, rows=6), 2, 4)
    following = rig.following()
    found: list[tuple[bool, Position]] = []
    for part in following.parts():
        if part is None:
            break
        found.append((part.whole, following.reached))
    end = rig.log.end().position
    assert found == [(True, before), (False, before), (False, before), (True, end)]
    assert before < following.reached == end


def test_a_segment_that_begins_meanwhile() -> None:
    rig = Rig()
    rig.made.layout = replace(rig.made.layout, segment_bytes=1)
    rig.made.appender._layout = rig.made.layout
    parts = rig.following().parts()
    assert next(parts) is None
    for number in range(3):
        rig.write(number)
        assert rows(next(parts)) == expected(number)
        assert next(parts) is None


@pytest.mark.parametrize("reason", ["rows", "time", "request"])
def test_why_it_ends(reason: str) -> None:
    """Everything that was read has been yielded by then."""
    rig = Rig(step=LOOK_S)
    rig.write(0, 1)
    following = rig.following(
        max_rows=6 if reason == "rows" else 1000, max_s=3.0 if reason == "time" else 1000.0
    )
    found, number = [], 2
    for part in following.parts():
        if part is not None:
            found += rows(part)
        elif reason == "rows":
            rig.write(number)
            number += 1
        rig.stops = reason == "request"
    assert found == expected(*range(number))
    assert following.reached == rig.log.end().position
    assert rig.now < 4.0


def test_it_ends_where_the_plan_ends() -> None:
    """Nothing beyond the limit is read, and it is reached exactly."""
    rig = Rig()
    rig.write(0, 1)
    covered = rig.log.end().position
    following = rig.following(limit=lambda _, upto: min(upto, covered))
    parts = following.parts()
    assert rows(next(parts)) == expected(0, 1)
    assert next(parts) is None
    rig.write(2)
    assert list(parts) == []
    assert following.reached == covered
    rig.write(3)
    ahead = rig.following(limit=lambda _, upto: min(upto, covered))
    assert [rows(part) for part in ahead.parts()] == [expected(0, 1)]
    assert ahead.reached == covered


@pytest.mark.parametrize("near", [True, False])
def test_far_from_the_end_of_the_log(near: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a batch ends that may be open near the end only; any other one goes on."""
    monkeypatch.setattr(follow, "FAR_BYTES", 1000)
    rig = Rig()
    rig.write(0)
    following = rig.following(near=near)
    parts = following.parts()
    assert rows(next(parts)) == expected(0)
    rig.write(1)
    assert rows(next(parts)) == expected(1)
    rig.write(*range(2, 32))
    if near:
        assert list(parts) == []
        assert following.reached.lsn == transaction(1).lsn
    else:
        assert not following.far
        assert rows(next(parts)) == expected(*range(2, 32))
        assert following.far
        assert following.reached.lsn == transaction(31).lsn
        assert next(parts) is None


def test_changes_that_nobody_wants_move_the_position() -> None:
    """So that what came before them is flushed and noted, however many they are."""
    rig = Rig()
    rig.write(0, 1)
    following = rig.following()
    following._decoder = Decoder(wanted=lambda _: False, messages=lambda _: True)
    (part,) = (part for part in islice(following.parts(), 1))
    assert part == Part([], whole=True)
    assert following.reached.lsn == transaction(1).lsn


@pytest.mark.parametrize("reason", ["rows", "time", "request"])
def test_it_ends_in_the_middle_of_a_long_log(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request need not wait until everything is read, and `reached` is what was yielded."""
    monkeypatch.setattr(follow, "merged", iter)
    rig = Rig(step=LOOK_S)
    for number in range(10):
        rig.write(number)
    following = rig.following(
        max_rows=4 if reason == "rows" else 1000, max_s=0.35 if reason == "time" else 1000.0
    )
    found = []
    for part in following.parts():
        found += rows(part)
        rig.stops = reason == "request"
    count = len(found) // 2
    assert 0 < count < 5
    assert found == expected(*range(count))
    assert following.reached.lsn == transaction(count - 1).lsn


def test_what_comes_after_a_pause_is_collected() -> None:
    """GIVEN a log that pauses WHEN it goes on THEN what comes within the time is read at once."""
    rig = Rig()
    rig.write(1)
    parts = rig.following(linger_s=0.5).parts()
    assert rows(next(parts)) == expected(1)
    assert next(parts) is None
    assert rig.slept == []
    rig.write(2)
    assert rows(next(parts)) == expected(2, 101)
    assert rig.slept == [0.5]
    assert next(parts) is None
