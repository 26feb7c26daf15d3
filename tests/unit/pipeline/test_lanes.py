"""Lanes keep the order of every key, whatever happens to the keys."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.change import Op
from tailrace.decode.group import Cells, Group
from tailrace.errors import ConfigError
from tailrace.pipeline.lanes import Lanes, hash_of
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


def test_keys_spread_over_all_lanes() -> None:
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
def test_everything_that_touches_a_key_is_in_one_lane(seed: int) -> None:
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


def test_lanes_without_key_changes_stay_apart() -> None:
    lanes = Lanes(4)
    plain = group(Op.INSERT, after=[str(n) for n in range(100)])
    lanes.join([plain, group(Op.UPDATE, before=["1"], after=["1"])])
    assert len(set(lanes.of(plain).tolist())) == 4


def test_truncate_joins_all() -> None:
    lanes = Lanes(4)
    plain = group(Op.INSERT, after=[str(n) for n in range(100)])
    truncate = group(Op.TRUNCATE)
    lanes.join([plain, truncate])
    assert set(lanes.of(plain).tolist()) == set(lanes.of(truncate).tolist()) == {0}


def test_tables_without_a_key_keep_their_own_order() -> None:
    lanes = Lanes(16)
    full = table("full", ReplicaIdentity.FULL)
    found = lanes.of(group(Op.INSERT, after=["1", "2", "3"], relation=full))
    assert len(set(found.tolist())) == 1


def test_chosen_columns_choose_the_lane() -> None:
    lanes = Lanes(16, ["tenant"])
    found = lanes.of(group(Op.INSERT, after=["1", "2", "3"], tenants=["a", "b", "a"]))
    assert found[0] == found[2] != found[1]
    with pytest.raises(ConfigError, match="no column nope"):
        Lanes(2, ["nope"]).of(group(Op.INSERT, after=["1"]))


@given(st.lists(st.none() | st.binary(max_size=30), max_size=30))
def test_hash_depends_on_the_value_alone(values: list[bytes | None]) -> None:
    alone = [int(hash_of(pa.array([value], pa.binary()))[0]) for value in values]
    together = hash_of(pa.array(values, pa.binary())).tolist()
    assert together == alone
    distinct = set(values)
    assert len({hash_ for hash_, value in zip(alone, values, strict=True)}) == len(distinct)


def by_hand(value: bytes | None) -> int:
    prime, mix = 0x100000001B3, 0x9E3779B97F4A7C15
    if value is None:
        return mix
    total: int = sum((byte + 1) * prime ** (at + 1) for at, byte in enumerate(value))
    return (total % 2**64) ^ (len(value) * mix % 2**64)


@given(st.none() | st.binary(max_size=30))
def test_hash_is_the_same_for_ever(value: bytes | None) -> None:
    assert hash_of(pa.array([value], pa.binary())).tolist() == [by_hand(value)]
