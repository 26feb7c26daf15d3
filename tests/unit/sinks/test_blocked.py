"""Which messages wait for messages that are not delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sinks.blocked import BlockedGroups
from tailrace.sinks.groups import groups_of
from tests.unit.sinks.test_groups import Key, batch_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Message = tuple[int, Key, Key]


def waiting(messages: Sequence[Message], failed: set[int], blocked: BlockedGroups) -> list[int]:
    found = blocked.hold_back(groups_of(batch_of(list(messages))), failed)
    return np.flatnonzero(found).tolist()


def test_a_key_change_blocks_the_new_key() -> None:
    messages = [(1, b"1", None), (1, b"3", None), (1, b"2", b"1"), (1, b"2", None), (1, b"3", None)]
    blocked = BlockedGroups()
    blocked.add(groups_of(batch_of([(1, b"1", None)])))
    assert waiting(messages, set(), blocked) == [0, 2, 3]


def test_what_comes_before_a_failed_message_does_not_wait() -> None:
    messages = [(1, b"1", None), (1, b"1", None), (1, b"1", None), (2, b"1", None)]
    assert waiting(messages, {1}, BlockedGroups()) == [2]


def test_a_message_without_a_key_waits_for_its_table_and_blocks_it() -> None:
    messages = [(1, b"1", None), (2, None, None), (1, None, None), (1, b"9", None)]
    assert waiting(messages, {0}, BlockedGroups()) == [2, 3]


def test_nothing_is_blocked_at_first() -> None:
    blocked = BlockedGroups()
    assert not blocked
    assert waiting([(1, b"1", None), (1, None, None)], set(), blocked) == []
    assert not blocked


def test_in_steps_a_key_change_that_waits_blocks_nothing_before_it() -> None:
    blocked = BlockedGroups()
    blocked.add(groups_of(batch_of([(1, b"1", None)])))
    messages: list[Message] = [
        (1, b"1", None),
        (1, b"2", None),
        (1, b"2", b"1"),
        (1, b"2", None),
    ]
    steps = []
    while messages:
        found = blocked.hold_back(groups_of(batch_of(messages)), in_steps=True)
        steps.append(found.tolist())
        messages = messages[len(found) :]
    assert steps == [[True, False], [True, True]]


KEYS = st.sampled_from([None, b"1", b"2", b"3", b"4"])
MESSAGES = st.lists(st.tuples(st.integers(1, 2), KEYS, KEYS), max_size=12)


@given(MESSAGES, st.sets(st.integers(0, 11)), st.integers(1, 12))
def test_it_is_what_a_loop_over_the_messages_finds(
    messages: list[Message], chosen: set[int], size: int
) -> None:
    keys: set[tuple[int, Key]] = set()
    scopes: set[int] = set()
    whole: set[int] = set()
    expected = []
    for number, (scope, key, former) in enumerate(messages):
        own = (scope, key)
        old = own if key is None or former is None else (scope, former)
        waits = bool({own, old} & keys) or scope in whole or (key is None and scope in scopes)
        if waits:
            expected.append(number)
        if waits or number in chosen:
            keys |= {own, old}
            scopes.add(scope)
            if key is None:
                whole.add(scope)
    blocked, found = BlockedGroups(), []
    for first in range(0, len(messages), size):
        part = messages[first : first + size]
        failed = {number - first for number in chosen if first <= number < first + len(part)}
        found += [first + row for row in waiting(part, failed, blocked)]
    assert found == expected
