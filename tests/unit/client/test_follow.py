"""Second copies of changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from tailrace.client import follow
from tailrace.client.follow import SeenChanges

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def first(seen: SeenChanges, change_id: str, sequence: int, at: datetime = NOON) -> bool:
    change: Any = SimpleNamespace(id=change_id, timestamp=at)
    message: Any = SimpleNamespace(sequence=sequence)
    return seen.is_first_copy(change, message)


def test_copy_at_another_sequence_is_recognized() -> None:
    seen = SeenChanges()
    assert first(seen, "a", 1)
    assert not first(seen, "a", 2)
    assert first(seen, "b", 3)


def test_an_id_that_is_used_again_after_a_restore_is_another_change() -> None:
    seen = SeenChanges()
    assert first(seen, "a", 1)
    assert first(seen, "a", 2, NOON + timedelta(microseconds=1))


def test_redelivery_at_the_same_sequence_is_not_a_copy() -> None:
    seen = SeenChanges()
    assert first(seen, "a", 1)
    assert first(seen, "a", 1)


def test_oldest_half_is_forgotten_when_full(monkeypatch: Any) -> None:
    monkeypatch.setattr(follow, "_MAX_REMEMBERED", 4)
    seen = SeenChanges()
    for number in range(5):
        assert first(seen, str(number), number)
    assert not first(seen, "3", 9)
    assert first(seen, "0", 10)
