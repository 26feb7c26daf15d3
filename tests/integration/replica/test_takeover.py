"""A copy of the log takes over: nothing is lost, doubled or out of order."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import (
    GapError,
    LogMissingError,
    SlotLostError,
)
from tailrace.log import lease
from tailrace.log.term import first_epoch
from tailrace.postgres.slot_terms import copy_slot
from tailrace.replica import takeover
from tailrace.replica.takeover import take_over
from tests.faults.harness import Writers
from tests.integration.replica.machines import Cluster, pair_of
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database
    from tests.integration.replica.machines import Machine

FENCED, GAP = 15, 10
SEED = 7


def test_the_copy_captures_on(any_cluster: Cluster) -> None:
    cluster = any_cluster
    leader, other = pair_of(cluster)
    cluster.insert(4)
    done = other.takeover("--yes")
    assert done.returncode == 0, done.stderr
    assert cluster.slots() == [cluster.slot_of(1)]
    assert f"leader of term 1, with the slot {cluster.slot_of(1)}" in done.stdout
    assert f"dropped: {cluster.slot}" in done.stdout
    assert "next: tailrace run" in done.stdout
    assert "warning" not in done.stdout
    assert lease.last_epoch(other.store) == first_epoch(1)
    other.catch_up()
    cluster.insert(5, rows=2)
    other.catch_up()
    assert other.check() == 6
    assert leader.check(complete=False) == 3
    assert [change.position for change in leader.changes()] == [
        change.position for change in other.changes()[:3]
    ]


def test_the_term_begins_with_a_segment_of_its_own(pair: tuple[Machine, Machine]) -> None:
    """Also after restarts capture stays in the term, and continues that segment."""
    leader, other = pair
    cluster = leader.cluster
    before = other.terms()
    other.take_over()
    cluster.insert(10)
    other.catch_up()
    other.catch_up()
    *earlier, last = other.terms()
    assert earlier == before
    assert last == (before[-1][0] + 1, 1, cluster.slot_of(1))
    assert lease.last_epoch(other.store) == first_epoch(1) + 2
    assert other.log.id == leader.log.id


def test_takeovers_there_and_back(pair: tuple[Machine, Machine]) -> None:
    """GIVEN a leader of term 1 WHEN the old leader has a copy of its log again THEN it can take
    over with term 2."""
    leader, other = pair
    cluster = leader.cluster
    other.take_over()
    cluster.insert(10)
    other.catch_up()
    leader.copy_log(other)
    leader.take_over()
    cluster.insert(20)
    leader.catch_up()
    assert cluster.slots() == [cluster.slot_of(2)]
    assert leader.term == 2
    assert leader.check() == 5
    assert [term for _, term, _ in leader.terms()] == [0, 1, 2]
    refused = other.capture()
    assert refused.wait() == FENCED, refused.output
    assert cluster.slot_of(2) in refused.output


def test_the_command_asks_and_shows(pair: tuple[Machine, Machine]) -> None:
    _, other = pair
    cluster, files = other.cluster, other.files()
    end = str(other.log.end().end_lsn)
    for arguments, stdin in ((("--dry-run",), ""), ((), "n\n")):
        done = other.takeover(*arguments, stdin=stdin)
        assert done.returncode == (0 if arguments else 1)
        assert f"ends at {end}, term 0" in done.stdout
        assert f"{cluster.slot}, confirmed up to {cluster.confirmed_of(0)}" in done.stdout
        assert "no session reads the slot" in done.stdout
        assert f"1, with the slot {cluster.slot_of(1)}" in done.stdout
        assert cluster.slots() == [cluster.slot]
        assert other.files() == files
    assert "Take over with term 1?" in done.stdout
    assert other.takeover(stdin="y\n").returncode == 0
    assert cluster.slots() == [cluster.slot_of(1)]


def test_a_slot_stays_marked_for_failover(database: Database, tmp_path: Path) -> None:
    """PostgreSQL's copy of a slot is not marked."""
    cluster = Cluster(database, tmp_path)
    database.query("SELECT pg_drop_replication_slot(%s)", cluster.slot)
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)"
    database.query(create, cluster.slot)
    _, other = pair_of(cluster)
    other.take_over()
    marked = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    assert database.query(marked, cluster.slot_of(1)) == [(True,)]
    other.catch_up()


def test_a_leader_that_dies_under_load(any_cluster: Cluster) -> None:
    """GIVEN writers WHEN the leader is killed and a copy of its log takes over THEN that log holds
    every committed row once, in order, and the first one holds the beginning of it."""
    cluster = any_cluster
    leader, other = cluster.machine("leader"), cluster.machine("other")
    with Writers(cluster.database, seed=SEED) as writers:
        process = leader.streaming()
        wait_for(lambda: writers.committed > 1000 and any(leader.changes()), "load")
        process.kill()
        other.copy_log(leader)
        other.take_over("--force")  # PostgreSQL may not have noticed the end of the session yet
        process = other.streaming()
        count = writers.committed
        wait_for(lambda: writers.committed > count + 1000, "load")
        assert leader.capture().wait() == FENCED
        process.stop()
    other.catch_up()
    assert 0 < leader.check(complete=False) < other.check()
    assert cluster.slots() == [cluster.slot_of(1)]


def test_a_leader_that_is_paused_under_load(cluster: Cluster) -> None:
    """GIVEN a leader that stops in the middle WHEN it continues after the takeover THEN it ends as
    FENCED, and what it has captured is what the new leader captures."""
    leader, other = cluster.machine("leader"), cluster.machine("other")
    with Writers(cluster.database, seed=SEED) as writers:
        old = leader.streaming()
        wait_for(lambda: writers.committed > 1000 and any(leader.changes()), "load")
        old.signal(signal.SIGSTOP)
        other.copy_log(leader)
        other.take_over("--force")
        new = other.streaming()
        old.signal(signal.SIGCONT)
        assert old.wait() == FENCED, old.output
        assert f"replication slot {cluster.slot_of(1)} of term 1 exists" in old.output
        assert "tailrace follow" in old.output
        count = writers.committed
        wait_for(lambda: writers.committed > count + 500, "load")
        new.stop()
    other.catch_up()
    assert 0 < leader.check(complete=False) < other.check()


def test_a_leader_that_is_deposed_alive(cluster: Cluster) -> None:
    """GIVEN a leader that runs WHEN a copy that is too short tries to depose it, again and again
    THEN each attempt is refused and changes nothing, until a copy is long enough."""
    leader, other = cluster.machine("leader"), cluster.machine("other")
    old = leader.streaming()
    with Writers(cluster.database, seed=SEED) as writers:
        wait_for(lambda: writers.committed > 300, "load")
        for _ in range(8):
            other.copy_log(leader)
            count = writers.committed
            wait_for(lambda at=count: writers.committed > at + 100, "load")  # type: ignore[misc]
            try:
                take_over(other.config, other.store, force=True)
            except GapError:
                assert cluster.slots() == [cluster.slot]
                assert other.term == 0
            else:
                break
    if other.term == 0:
        leader_end = cluster.server_end()
        old.wait_until(lambda: leader.log.end().end_lsn >= leader_end, "the leader")
        other.copy_log(leader)
        other.take_over("--force")
    assert old.wait() == FENCED, old.output
    other.catch_up()
    leader.check(complete=False)
    other.check()
    assert cluster.slots() == [cluster.slot_of(1)]


def test_a_copy_that_is_too_short(pair: tuple[Machine, Machine]) -> None:
    leader, other = pair
    cluster = leader.cluster
    end = other.log.end().end_lsn
    cluster.insert(10, rows=100)
    leader.catch_up()
    files, confirmed = other.files(), leader.log.end().end_lsn
    for arguments in (("--yes",), ("--dry-run",), ("--yes", "--force")):
        done = other.takeover(*arguments)
        assert done.returncode == GAP
        assert f"the log ends at {end}" in done.stderr
        assert cluster.confirmed_of(0) in done.stderr
        assert f"{confirmed - end:,} bytes of WAL are missing" in done.stderr
        assert "ends last" in done.stderr
    assert cluster.slots() == [cluster.slot]
    assert other.files() == files
    leader.catch_up()


def test_a_copy_whose_mark_is_old(pair: tuple[Machine, Machine]) -> None:
    """After a power loss the mark may be older than the log. The entries after it count."""
    leader, other = pair
    cluster = leader.cluster
    old = (other.log_folder / "durable").read_bytes()
    cluster.insert(10)
    leader.catch_up()
    other.copy_log(leader)
    (other.log_folder / "durable").write_bytes(old)
    assert other.takeover("--dry-run").returncode == GAP  # it recovers nothing
    other.take_over()
    other.catch_up()
    assert other.check() == 4


def test_a_leader_that_acknowledges_during_the_takeover(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a copy that was long enough WHEN the leader acknowledges more before the slot is copied
    THEN the takeover is undone, and the leader continues."""
    leader, other = pair
    cluster, files = leader.cluster, other.files()

    def late(*names: object) -> None:
        cluster.insert(10)
        leader.catch_up()
        copy_slot(*names)  # type: ignore[arg-type]

    monkeypatch.setattr(takeover, "copy_slot", late)
    with pytest.raises(GapError, match=f"slot {cluster.slot_of(1)} is confirmed up to"):
        take_over(other.config, other.store)
    assert cluster.slots() == [cluster.slot]
    assert other.files() == files
    leader.catch_up()
    assert leader.check() == 4


def test_what_a_deposed_leader_has_captured_counts(pair: tuple[Machine, Machine]) -> None:
    """GIVEN a winner of term 1 that dies before it captures, and a leader of term 0 that captured
    on until it was fenced WHEN that one takes over THEN its log is still what was committed."""
    leader, other = pair
    cluster = leader.cluster
    old = leader.streaming()
    cluster.insert(10)
    before = other.log.end().end_lsn
    # The slot of term 1 is where the copy ends; the leader of term 0 captures beyond.
    cluster.database.query(
        "SELECT pg_copy_logical_replication_slot(%s, %s)", cluster.slot, cluster.slot_of(1)
    )
    cluster.insert(20, rows=2)
    end = cluster.server_end()
    old.wait_until(lambda: leader.log.end().end_lsn >= end, "the deposed leader")
    old.kill()
    wait_for(lambda: not cluster.active(0), "the session to end")
    assert leader.log.end().end_lsn > before
    leader.take_over()
    assert leader.term == 2
    cluster.insert(30)
    leader.catch_up()
    assert leader.check() == 7
    assert cluster.slots() == [cluster.slot_of(2)]


def test_a_deposed_leader_that_lacks_the_new_one_s_changes(pair: tuple[Machine, Machine]) -> None:
    leader, other = pair
    cluster = leader.cluster
    other.take_over()
    cluster.insert(10)
    other.catch_up()
    with pytest.raises(GapError, match=f"slot {cluster.slot_of(1)} is confirmed up to"):
        take_over(leader.config, leader.store)
    leader.copy_log(other)
    assert take_over(leader.config, leader.store).term == 2


def test_a_log_whose_slot_is_missing(pair: tuple[Machine, Machine]) -> None:
    """The highest slot is of a lower term than the log has seen, as after a failover to a standby
    that lacked the newest slot."""
    leader, other = pair
    cluster, database = leader.cluster, leader.cluster.database
    other.take_over()
    files = other.files()
    copy = "SELECT pg_copy_logical_replication_slot(%s, %s)"
    drop = "SELECT pg_drop_replication_slot(%s)"
    database.query(copy, cluster.slot_of(1), cluster.slot)
    database.query(drop, cluster.slot_of(1))
    with pytest.raises(SlotLostError, match=f"slot {cluster.slot_of(1)} is missing: the latest"):
        take_over(other.config, other.store)
    database.query(drop, cluster.slot)
    with pytest.raises(SlotLostError, match="none of a later term"):
        take_over(other.config, other.store)
    assert other.files() == files


def test_a_machine_without_a_log(cluster: Cluster) -> None:
    empty = cluster.machine("empty")
    with pytest.raises(LogMissingError) as caught:
        takeover.make_plan(empty.config, empty.store)
    assert "holds a copy" in caught.value.hint
    done = empty.takeover("--yes")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert cluster.slots() == [cluster.slot]


def test_a_log_in_use(pair: tuple[Machine, Machine]) -> None:
    leader, _ = pair
    leader.streaming()
    done = leader.takeover("--yes", "--force")
    assert done.returncode == FENCED
    assert "another process is appending" in done.stderr
    assert "tailrace follow" in done.stderr
    assert leader.cluster.slots() == [leader.cluster.slot]
