"""The bound of a page: every change that the page does not see is in the log after it."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.backfill.bound import PageBound
from tailrace.backfill.page import PageSnapshot
from tailrace.position import Lsn, Position
from tailrace.snapshot.table import Table
from tailrace.visibility import Visibility
from tests.fix_log import Unit, random_log, relation

BEFORE = Position(Lsn(0))


def snapshot(visibility: Visibility) -> PageSnapshot:
    return PageSnapshot(
        table=Table(relation=relation(1), types={}),
        key=("id",),
        partitioned=False,
        condition=None,
        visibility=visibility,
        lsn=Lsn(1 << 40),
        taken_at=datetime(2026, 1, 1, tzinfo=UTC),
        since=None,
    )


def changes_table(unit: Unit) -> bool:
    return any(
        change.relation is not None and change.relation.name == "t1" for change in unit.changes()
    )


@given(st.randoms(use_true_random=False), st.data())
def test_every_unseen_change_is_after_the_bound(chance: random.Random, data: st.DataObject) -> None:
    log = random_log(chance)
    xids = sorted(unit.xid for unit in log.units if unit.xid)
    xmax = data.draw(st.sampled_from([*xids, 10_000]), "xmax")
    open_xids = data.draw(st.sets(st.sampled_from(xids)) if xids else st.just(set()), "open")
    running = tuple(sorted(xid for xid in open_xids if xid < xmax))
    seen = Visibility(min([xmax, *running]), xmax, running)
    bound = PageBound(log.log(), BEFORE, lambda _: None).position(snapshot(seen))
    assert bound is not None
    for unit in log.units:
        if unit.xid and changes_table(unit):
            visible = seen.sees(np.array([unit.xid], np.uint32))[0]
            assert visible or all(change.position > bound for change in unit.changes())


def test_there_is_no_bound_while_an_earlier_commit_is_not_visible() -> None:
    """It is retried with a later snapshot, which sees the commit."""
    log = random_log(random.Random(1))
    first = next(unit for unit in log.units if unit.xid and changes_table(unit))
    reasons: list[str] = []
    bound = PageBound(log.log(), Position(first.lsn), reasons.append)
    assert bound.position(snapshot(Visibility(3, 3))) is None
    assert reasons == [f"the commit at {first.lsn} is not visible yet"]
    assert bound.position(snapshot(Visibility(10_000, 10_000))) == log.log().end().position
