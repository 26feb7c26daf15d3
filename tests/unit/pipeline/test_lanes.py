"""Lanes keep the order of every key, also when updates change keys."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.change import Op
from tailrace.decode.group import Cells, Group
from tailrace.errors import ConfigError
from tailrace.pipeline.lanes import Lanes
from tailrace.schema import Column, Relation, ReplicaIdentity
from tests.chance import seeds

COLUMNS = (Column(name="id", type_oid=20, key=True), Column(name="tenant", type_oid=25))


def table(name: str = "t", identity: ReplicaIdentity = ReplicaIdentity.DEFAULT) -> Relation:
    return Relation(oid=1, namespace="s", name=name, replica_identity=identity, columns=COLUMNS)


def cells(*values: str | None) -> Cells:
    return Cells(pa.array([None if v is None else v.encode() for v in values], pa.binary()))


def group(
    op: Op,
    *,
    before: list[str] | None = None,
    after: list[str] | None = None,
    relation: Relation | None = None,
    tenants: list[str] | None = None,
) -> Group:
    count = len(after or before or ["truncate"])
    other = cells(*(tenants or ["x"] * count))
    return Group(
        op=op,
        relation=relation or table(),
        lsn=np.zeros(count, np.uint64),
        ordinal=np.arange(count, dtype=np.uint64),
        xid=np.zeros(count, np.uint32),
        committed_at=np.zeros(count, np.int64),
        before=None if before is None else (cells(*before), None),
        after=None if after is None else (cells(*after), other),
    )


def test_keys_are_spread_over_all_lanes() -> None:
    found = Lanes(8).of(group(Op.INSERT, after=[str(n) for n in range(8000)]))
    counts = np.bincount(found, minlength=8)
    assert counts.min() > 800
    assert counts.max() < 1200


def test_a_key_has_one_lane_in_every_operation() -> None:
    lanes, keys = Lanes(16), ["1", "2", "35"]
    insert = lanes.of(group(Op.INSERT, after=keys))
    assert (lanes.of(group(Op.UPDATE, after=keys)) == insert).all()
    assert (lanes.of(group(Op.DELETE, before=keys)) == insert).all()


@pytest.mark.parametrize("seed", seeds(50, short=15))
def test_all_changes_of_a_key_are_in_one_lane(seed: int) -> None:
    rng = random.Random(seed)
    keys = [str(number) for number in range(40)]
    moves = [(rng.choice(keys), rng.choice(keys)) for _ in range(rng.randrange(12))]
    swap = [("1", "2"), ("2", "3"), ("3", "1")]
    moved = group(
        Op.UPDATE,
        before=[old for old, _ in moves + swap],
        after=[new for _, new in moves + swap],
    )
    plain = group(Op.INSERT, after=keys)
    lanes = Lanes(7)
    lanes.join([plain, moved])
    lane_of = dict(zip(keys, lanes.of(plain).tolist(), strict=True))
    for (old, new), lane in zip(moves + swap, lanes.of(moved).tolist(), strict=True):
        assert lane == lane_of[old] == lane_of[new]


def test_lanes_without_key_changes_stay_separate() -> None:
    lanes = Lanes(4)
    plain = group(Op.INSERT, after=[str(n) for n in range(100)])
    lanes.join([plain, group(Op.UPDATE, before=["1"], after=["1"])])
    assert len(set(lanes.of(plain).tolist())) == 4


def test_truncate_joins_all_lanes() -> None:
    lanes = Lanes(4)
    plain = group(Op.INSERT, after=[str(n) for n in range(100)])
    truncate = group(Op.TRUNCATE)
    lanes.join([plain, truncate])
    assert set(lanes.of(plain).tolist()) == set(lanes.of(truncate).tolist()) == {0}


def test_a_table_without_a_key_has_one_lane() -> None:
    lanes = Lanes(16)
    full = table("full", ReplicaIdentity.FULL)
    found = lanes.of(group(Op.INSERT, after=["1", "2", "3"], relation=full))
    assert len(set(found.tolist())) == 1


def test_the_columns_of_key_choose_the_lane() -> None:
    lanes = Lanes(16, ["tenant"])
    found = lanes.of(group(Op.INSERT, after=["1", "2", "3"], tenants=["a", "b", "a"]))
    assert found[0] == found[2] != found[1]
    with pytest.raises(ConfigError, match="no column nope"):
        Lanes(2, ["nope"]).of(group(Op.INSERT, after=["1"]))


def test_groups_of_several_tables_share_a_lane() -> None:
    lanes = Lanes(16, ["tenant"], grouped=True)
    tenants = [str(number) for number in range(50)]
    ids = [f"id {number}" for number in range(50)]
    one = lanes.of(group(Op.INSERT, after=ids, tenants=tenants))
    other = lanes.of(group(Op.INSERT, after=tenants, tenants=tenants, relation=table("u")))
    assert one.tolist() == other.tolist()
    assert len(set(one.tolist())) > 8
    with pytest.raises(ConfigError, match="`group` names for lanes"):
        Lanes(2, ["nope"], grouped=True).of(group(Op.INSERT, after=["1"]))


@pytest.mark.parametrize("op", [Op.UPDATE, Op.DELETE])
def test_a_key_whose_old_value_is_unknown_is_refused(op: Op) -> None:
    """GIVEN a `key` outside the replica identity WHEN a row is updated or deleted THEN its old
    lane is unknown, and the batch is refused before anything of it is delivered."""
    lanes = Lanes(4, ["tenant"])
    lanes.join([group(Op.INSERT, after=["1"])])
    after = ["1"] if op is Op.UPDATE else None
    with pytest.raises(ConfigError, match=r"`key` must be in the replica identity of s\.t"):
        lanes.join([group(op, before=["1"], after=after)])
    full = table("full", ReplicaIdentity.FULL)
    lanes.join([group(op, before=["1"], after=after, relation=full)])
    Lanes(4, ["id"]).join([group(op, before=["1"], after=after)])


EXAMPLE = ["1", "2", "3", "4", "5", "6", "7"]
"""The keys of the example in the module's docstring."""


def lanes_of(*groups: Group, count: int = 4) -> list[int]:
    """The lanes of the example's inserts in a micro-batch with these groups."""
    inserts, lanes = group(Op.INSERT, after=EXAMPLE), Lanes(count)
    lanes.join([inserts, *groups])
    found: list[int] = lanes.of(inserts).tolist()
    return found


def test_the_example_of_the_docstring() -> None:
    assert lanes_of() == [3, 0, 3, 3, 0, 2, 2]
    assert lanes_of(group(Op.UPDATE, before=["1"], after=["2"])) == [0, 0, 0, 0, 0, 2, 2]
    assert lanes_of(group(Op.TRUNCATE)) == [0] * 7


def test_a_key_change_within_a_lane_joins_nothing() -> None:
    assert lanes_of(group(Op.UPDATE, before=["1"], after=["3"])) == lanes_of()


def test_key_changes_join_lanes_transitively_over_groups() -> None:
    to_second = group(Op.UPDATE, before=["1"], after=["2"])
    to_sixth = group(Op.UPDATE, before=["2"], after=["6"])
    assert lanes_of(to_second, to_sixth) == [0] * 7
    assert lanes_of(to_sixth, to_second) == [0] * 7


def test_lanes_are_joined_for_one_micro_batch_only() -> None:
    assert lanes_of(group(Op.TRUNCATE)) == [0] * 7
    assert lanes_of() == [3, 0, 3, 3, 0, 2, 2]


def test_logical_messages_share_a_lane() -> None:
    messages = replace(
        group(Op.MESSAGE, after=["1", "2", "3"]), relation=None, before=None, after=None
    )
    assert len(set(Lanes(16).of(messages).tolist())) == 1


def change(step: tuple[str, str]) -> Group:
    """One change of the key `step[0]`; to another key if `step[1]` differs."""
    old, new = step
    if old == new:
        return group(Op.INSERT, after=[new])
    return group(Op.UPDATE, before=[old], after=[new])


KEYS = st.sampled_from([str(number) for number in range(12)])


@given(
    st.lists(st.tuples(KEYS, KEYS) | KEYS.map(lambda key: (key, key)), max_size=30),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_any_interleaving_of_lanes_keeps_the_order_of_every_key(
    steps: list[tuple[str, str]], count: int, rng: random.Random
) -> None:
    groups = [change(step) for step in steps]
    lanes = Lanes(count)
    lanes.join(groups)
    queues: dict[int, list[int]] = defaultdict(list)
    for number, found in enumerate(groups):
        queues[int(lanes.of(found)[0])].append(number)
    delivered: list[int] = []
    while waiting := [lane for lane, queue in queues.items() if queue]:
        delivered.append(queues[rng.choice(waiting)].pop(0))
    for key in {key for step in steps for key in step}:
        of_key = [number for number in delivered if key in steps[number]]
        assert of_key == sorted(of_key)
