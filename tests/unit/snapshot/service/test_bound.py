"""Every change that a snapshot does not see is after its bound, in any log."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import SnapshotLostError
from tailrace.log import awaited
from tailrace.log.reader import Log
from tailrace.position import READS, Lsn, Position
from tailrace.postgres.names import TableName
from tailrace.snapshot.export import Exported
from tailrace.snapshot.service.bound import (
    CLOCK_SKEW,
    UNKNOWN,
    bound_in,
    check_visible,
    wait_for_log,
)
from tailrace.visibility import Visibility
from tailrace.wire.pgtime import PgTime
from tests.fix_log import START, TestLog, random_log, relation

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_log import Unit

EVERYTHING = 1 << 40
TAKEN_AT = datetime(2026, 1, 1, tzinfo=UTC)


def snapshot(
    visibility: Visibility, lsn: int = EVERYTHING, since: datetime | None = None
) -> Exported:
    return Exported(
        name="s",
        table=TableName("public", "t1"),
        visibility=visibility,
        lsn=Lsn(lsn),
        taken_at=TAKEN_AT,
        since=since,
    )


def changes_table(unit: Unit) -> bool:
    return any(
        change.relation is not None and change.relation.name == "t1" for change in unit.changes()
    )


@given(st.randoms(use_true_random=False), st.data())
def test_no_unseen_change_up_to_the_bound(chance: random.Random, data: st.DataObject) -> None:
    log = random_log(chance)
    xids = sorted(unit.xid for unit in log.units if unit.xid)
    xmax = data.draw(st.sampled_from([*xids, 10_000]), "xmax")
    hanging = data.draw(st.sets(st.sampled_from(xids)) if xids else st.just(set()), "hanging")
    running = tuple(sorted(each for each in hanging if each < xmax))
    seen = Visibility(min([xmax, *running]), xmax, running)
    result, since = bound_in(log.log(), relation(1), snapshot(seen), None)
    changing = [unit for unit in log.units if unit.xid and changes_table(unit)]
    unseen = [unit.lsn for unit in changing if not seen.sees(np.array([unit.xid], np.uint32))[0]]
    assert all(lsn > result for lsn in unseen)
    # And it is the highest such LSN: the next change may be at the end of the log.
    assert result == min([*unseen, log.log().end().end_lsn]) - 1
    # Clients read the stream from that time on: it stored the first unseen change later.
    first = [PgTime(unit.time).to_datetime() for unit in changing if unit.lsn in unseen]
    assert all(since <= time - CLOCK_SKEW for time in first[:1])
    assert since <= TAKEN_AT - CLOCK_SKEW


def test_the_bound_is_before_the_snapshots_lsn() -> None:
    log = random_log(random.Random(1))
    everything = Visibility(10_000, 10_000)
    assert bound_in(log.log(), relation(1), snapshot(everything, START + 9), None).lsn == START + 8


def test_an_empty_log() -> None:
    empty = TestLog().log()
    assert bound_in(empty, relation(1), snapshot(Visibility(3, 3)), None).lsn == START - 1
    assert bound_in(empty, relation(1), snapshot(Visibility(3, 3), lsn=0), None).lsn == UNKNOWN


def test_an_invisible_commit_from_before_the_pipeline() -> None:
    log = random_log(random.Random(1))
    nothing = snapshot(Visibility(3, 3))
    first = next(unit.lsn for unit in log.units if unit.xid and changes_table(unit))
    before = Position(Lsn(first - 1), 0)
    assert bound_in(log.log(), relation(1), nothing, before).lsn == first - 1
    with pytest.raises(SnapshotLostError, match="is not visible yet"):
        bound_in(log.log(), relation(1), nothing, Position(first, 0))


def test_snapshots_without_a_bound_of_their_own_need_visible_commits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = random_log(random.Random(1))
    nothing = snapshot(Visibility(3, 3))
    first = next(unit.lsn for unit in log.units if unit.xid and changes_table(unit))
    start = Position(first, READS)
    # There is no log yet.
    check_visible(tmp_path, relation(1), nothing, start)
    monkeypatch.setattr(Log, "open", lambda _: log.log())
    with pytest.raises(SnapshotLostError, match=f"the commit at {first}.* is not visible yet"):
        check_visible(tmp_path, relation(1), nothing, start)
    check_visible(tmp_path, relation(1), nothing, None)
    check_visible(tmp_path, relation(1), nothing, Position(Lsn(first - 1), READS))
    check_visible(tmp_path, relation(1), snapshot(Visibility(10_000, 10_000)), start)


def test_waiting_for_the_log_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture may be stopped."""
    log = TestLog()
    stopping = threading.Event()
    waits: list[float] = []
    monkeypatch.setattr(stopping, "wait", waits.append)
    wait_for_log(log.log(), snapshot(Visibility(3, 3), lsn=START), stopping)
    assert waits == []
    wait_for_log(log.log(), snapshot(Visibility(3, 3), lsn=START + 64), stopping)
    assert sum(waits) == pytest.approx(2, abs=0.1)
    assert awaited.read(log.store) == START + 64
    log.progress(START + 64)
    wait_for_log(log.log(), snapshot(Visibility(3, 3), lsn=START + 64), stopping)
    assert sum(waits) == pytest.approx(2, abs=0.1)
