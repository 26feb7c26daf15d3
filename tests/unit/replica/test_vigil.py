"""When a follower takes over by itself."""

from __future__ import annotations

from tailrace.replica.vigil import Vigil

AFTER_S = 60.0


def noted(vigil: Vigil, *events: tuple[float, float, bool | None]) -> list[bool]:
    """(now, seconds of silence, whether the slot is read) → whether to take over."""
    return [vigil.note(now, silent_s=silent, read=read) for now, silent, read in events]


def test_both_signs_must_last() -> None:
    """GIVEN a silent leader and a free slot THEN it is time only when both have lasted."""
    vigil = Vigil(AFTER_S)
    assert noted(vigil, (0, 40, False), (30, 70, False), (59, 99, False)) == [False] * 3
    assert noted(vigil, (60, 100, False)) == [True]


def test_a_leader_that_sends_is_alive() -> None:
    """GIVEN a capture that is down WHEN the leader still sends THEN nobody takes over."""
    assert not any(noted(Vigil(AFTER_S), *((now, 10, False) for now in range(0, 600, 10))))


def test_a_slot_that_is_read_has_a_leader() -> None:
    """GIVEN a line that is cut WHEN the leader still reads its slot THEN nobody takes over."""
    assert not any(noted(Vigil(AFTER_S), *((now, now, True) for now in range(0, 600, 10))))


def test_without_postgresql_nobody_takes_over() -> None:
    """GIVEN a PostgreSQL that cannot be asked WHEN it comes back THEN the time begins anew."""
    vigil = Vigil(AFTER_S)
    assert not any(noted(vigil, (0, 100, False), (50, 150, None), (100, 200, False)))
    assert noted(vigil, (159, 259, False), (160, 260, False)) == [False, True]


def test_a_sign_of_life_begins_anew() -> None:
    vigil = Vigil(AFTER_S)
    assert not any(noted(vigil, (0, 50, False), (50, 1, False), (70, 35, False), (120, 90, False)))
    assert noted(vigil, (130, 100, False)) == [True]


def test_postgresql_is_asked_late() -> None:
    assert [Vigil(AFTER_S).asks(silent) for silent in (0, 29, 30, 90)] == [False, False, True, True]
