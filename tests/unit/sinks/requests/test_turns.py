"""A turn has no two messages of a group, and later messages of a group are in later turns."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sinks.groups import groups_of
from tailrace.sinks.requests.limits import Limits
from tailrace.sinks.requests.request import cut
from tailrace.sinks.requests.turns import turns_of
from tests.unit.sinks.requests.test_engine import batch_of, numbers

KEYS = [b"1", b"2", b"3", b"4", None]


def turns(*keys: bytes | None, former: dict[int, bytes] | None = None) -> list[int]:
    found: list[int] = turns_of(groups_of(batch_of(*keys, former=former))).tolist()
    return found


def test_turns_of_keys() -> None:
    assert turns(b"1", b"2", b"1", b"3", b"1") == [0, 0, 1, 0, 2]
    assert turns() == []
    assert turns(b"1", b"2", b"1", b"3", b"2", b"2", former={4: b"1"}) == [0, 0, 1, 0, 2, 3]


def test_a_message_without_a_key_has_a_turn_of_its_own() -> None:
    assert turns(b"1", b"2", None, b"1", None, None) == [0, 0, 1, 2, 3, 4]


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.sampled_from(KEYS[:-1]))))
def test_turns_are_the_earliest_that_keep_the_order(rows: list[tuple[bytes, bytes]]) -> None:
    former = {row: old for row, (key, old) in enumerate(rows) if key and old}
    groups = groups_of(batch_of(*(key for key, _ in rows), former=former))
    expected: list[int] = []
    for row in range(len(rows)):
        keys = {groups.own[row], groups.former[row]}
        earlier = [
            expected[other]
            for other in range(row)
            if groups.whole[row]
            or groups.whole[other]
            or keys & {groups.own[other], groups.former[other]}
        ]
        expected.append(max(earlier, default=-1) + 1)
    assert turns_of(groups).tolist() == expected


def test_requests_of_distinct_keys() -> None:
    """Destinations that alternate share no request, and requests are as large as they may be."""
    batch = batch_of(b"1/a", b"2/b", b"3/a", b"1/a", b"4/b", b"3/b", b"5/a")
    requests = list(cut(batch, Limits(rows=10, distinct=True)))
    assert [numbers(each.rows) for each in requests] == [[0, 2, 6], [1, 4], [3], [5]]
    assert [numbers(each.rows) for each in cut(batch, Limits(rows=2, distinct=True))] == [
        [0, 2], [6], [1, 4], [3], [5],
    ]  # fmt: skip
    for each in requests:
        assert len(np.unique(each.groups.own)) == each.rows.num_rows
        assert each.groups.own.tolist() == groups_of(each.rows).own.tolist()
        assert each.size == sum(map(len, each.rows["payload"].to_pylist()))
