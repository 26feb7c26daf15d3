"""Who waits for whom, compared with the rule of `tailrace.sinks.groups` row by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sinks.groups import Groups
from tailrace.sinks.rabbitmq.waits import Followers, edges_of

ROW = st.tuples(st.integers(1, 2), st.integers(0, 4), st.integers(0, 4))
"""Table, key (0: none), old key (0: none)."""
Row = tuple[int, int, int]


def groups(rows: list[Row]) -> Groups:
    scope = np.array([table for table, _, _ in rows], np.uint64)
    own = np.array([table * 100 + key if key else table for table, key, _ in rows], np.uint64)
    former = [
        table * 100 + old if key and old else table * 100 + key if key else table
        for table, key, old in rows
    ]
    whole = np.array([not key for _, key, _ in rows])
    return Groups(scope=scope, own=own, former=np.array(former, np.uint64), whole=whole)


def conflict(one: Row, other: Row) -> bool:
    """Whether two messages must stay in order."""
    if one[0] != other[0]:
        return False
    keys = [{row[1], row[2]} - {0} if row[1] else set() for row in (one, other)]
    return not (keys[0] and keys[1]) or bool(keys[0] & keys[1])


def closure(edges: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """Which rows wait for which, directly or for one that waits."""
    waits = np.zeros((count, count), bool)
    for earlier, later in edges:
        waits[earlier, later] = True
    for middle in range(count):
        waits |= waits[:, [middle]] & waits[[middle], :]
    return {(int(one), int(other)) for one, other in np.argwhere(waits)}


@given(st.lists(ROW, min_size=1, max_size=12))
def test_edges_are_those_of_the_rule(rows: list[Row]) -> None:
    earlier, later = edges_of(groups(rows))
    assert (earlier < later).all()
    found = set(zip(earlier.tolist(), later.tolist(), strict=True))
    expected = {
        (one, other)
        for other in range(len(rows))
        for one in range(other)
        if conflict(rows[one], rows[other])
    }
    assert found <= expected
    assert closure(found, len(rows)) == closure(expected, len(rows))


def test_edges_grow_with_the_rows_and_not_with_their_pairs() -> None:
    rows = [(1, 1 if number % 10 else 0, 0) for number in range(1000)]
    assert len(edges_of(groups(rows))[0]) < 3000


@given(st.lists(ROW, min_size=1, max_size=12), st.data())
def test_followers(rows: list[Row], data: st.DataObject) -> None:
    edges = edges_of(groups(rows))
    followers = Followers.of(edges, len(rows))
    chosen = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1))))
    found = followers.after(np.array(chosen, np.int64))
    pairs = list(zip(edges[0].tolist(), edges[1].tolist(), strict=True))
    expected = [later for row in chosen for earlier, later in pairs if earlier == row]
    assert sorted(found.tolist()) == sorted(expected)
