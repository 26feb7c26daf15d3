"""Which messages of a batch belong together."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.message import MESSAGES
from tailrace.sinks.groups import groups_of, order_keys
from tests.unit.sinks.rows import rows, with_groups

Key = bytes | None
Group = tuple[Key, Key]


def batch_of(found: list[tuple[int, Key, Key]]) -> pa.RecordBatch:
    """Messages with these scopes, keys and old keys."""
    batch = rows(range(len(found)))
    columns = {
        "scope": pa.array([scope for scope, _, _ in found], pa.uint64()),
        "key": pa.array([key for _, key, _ in found], pa.binary()),
        "former": pa.array([former for _, _, former in found], pa.binary()),
    }
    for name, values in columns.items():
        batch = batch.set_column(MESSAGES.get_field_index(name), MESSAGES.field(name), values)
    return batch


def test_a_key_belongs_to_its_table() -> None:
    groups = groups_of(batch_of([(1, b"7", None), (2, b"7", None), (1, b"7", None)]))
    assert groups.own[0] == groups.own[2] != groups.own[1]
    assert groups.former.tolist() == groups.own.tolist()
    assert not groups.whole.any()


def test_an_update_that_changes_a_key_has_two_groups() -> None:
    groups = groups_of(batch_of([(1, b"7", None), (1, b"8", b"7")]))
    assert groups.former[1] == groups.own[0]
    assert groups.own[1] != groups.own[0]


def test_a_message_without_a_key_concerns_its_table() -> None:
    groups = groups_of(batch_of([(1, None, None), (1, b"", None), (2, b"7", None)]))
    assert groups.whole.tolist() == [True, False, False]
    assert groups.own[0] == groups.scope[1]
    without = groups_of(batch_of([(1, None, None), (2, None, None)]))
    assert without.own.tolist() == without.former.tolist() == [1, 2]


def test_a_group_takes_the_place_of_the_key_in_all_tables() -> None:
    batch = batch_of([(1, b"7", None), (2, b"8", None), (1, b"9", None), (1, b"7", None)])
    same = (b"a", b"a")
    groups = groups_of(with_groups(batch, [same, same, (b"b", b"b"), same]))
    assert groups.own[0] == groups.own[1] == groups.own[3] != groups.own[2]
    assert groups.former.tolist() == groups.own.tolist()
    assert not groups.whole.any()


def test_a_row_that_moves_to_another_group_is_tied_to_both() -> None:
    batch = batch_of([(1, b"7", None)] * 5)
    moves: list[Group | None] = [
        (b"a", b"a"),
        (b"b", b"a"),
        (None, b"b"),
        (None, None),
        (b"a", None),
    ]
    groups = groups_of(with_groups(batch, moves))
    [a, b, key] = groups.own[:3]
    assert len({a, b, key}) == 3
    assert groups.own.tolist() == [a, b, key, key, a]
    assert groups.former.tolist() == [a, a, b, key, key]


def test_without_a_group_there_is_the_key_and_without_a_key_the_table() -> None:
    found = [(1, b"7", None), (1, b"8", b"7"), (1, None, None), (1, None, None)]
    plain = groups_of(batch_of(found))
    mixed: list[Group | None] = [None, None, None, (b"a", b"a")]
    groups = groups_of(with_groups(batch_of(found), mixed))
    assert groups.own[:3].tolist() == plain.own[:3].tolist()
    assert groups.former[:3].tolist() == plain.former[:3].tolist()
    assert groups.whole.tolist() == [False, False, True, False]
    batch = with_groups(batch_of(found), mixed)
    assert order_keys(batch).to_pylist() == [b"7", b"8", None, b"a"]
    assert order_keys(batch_of(found)).to_pylist() == [b"7", b"8", None, None]


KEYS = st.none() | st.binary(max_size=5)


@given(st.lists(st.tuples(st.integers(1, 3), KEYS, KEYS), max_size=20))
def test_groups_do_not_depend_on_the_batch(found: list[tuple[int, Key, Key]]) -> None:
    together = groups_of(batch_of(found))
    for row, one in enumerate(found):
        alone = groups_of(batch_of([one]))
        assert together.own[row] == alone.own[0]
        assert together.former[row] == alone.former[0]
        assert together.whole[row] == (one[1] is None)
    assert len({*zip(together.scope.tolist(), together.own.tolist(), strict=True)}) == len(
        {(scope, key) for scope, key, _ in found}
    )
