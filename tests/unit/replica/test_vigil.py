"""When a follower takes over by itself."""

from __future__ import annotations

from tailrace.replica.vigil import SlotSeen, Vigil

AFTER_S = 60.0


def noted(vigil: Vigil, *events: tuple[float, float, bool | None], term: int = 0) -> list[bool]:
    """(now, seconds of silence, whether the slot is read) → whether to take over."""
    return [
        vigil.note(now, silent_s=silent, slot=None if read is None else SlotSeen(term, read))
        for now, silent, read in events
    ]


def test_both_signs_must_last() -> None:
    """GIVEN a silent leader and a free slot THEN it is time only when both have lasted."""
    vigil = Vigil(AFTER_S)
    assert noted(vigil, (0, 40, False), (30, 70, False), (59, 99, False)) == [False] * 3
    assert noted(vigil, (60, 100, False)) == [True]


def test_another_machine_that_has_just_taken_over_gets_time() -> None:
    """GIVEN a slot that is free for long WHEN another machine begins the next term THEN the time
    begins anew: its capture is starting."""
    vigil = Vigil(AFTER_S)
    assert noted(vigil, (0, 100, False), (59, 159, False)) == [False] * 2
    assert noted(vigil, (61, 161, False), (120, 220, False), term=1) == [False] * 2
    assert noted(vigil, (121, 221, False), term=1) == [True]


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
