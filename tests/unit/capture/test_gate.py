"""How far capture may acknowledge while followers have to catch up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.capture.gate import Gate
from tailrace.log import acknowledged
from tailrace.log.format.mark import Mark
from tailrace.log.store import LocalStore
from tailrace.position import Lsn, Position
from tailrace.replica.quorum import Quorum
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path


def mark(offset: int, *, sequence: int = 1, end_lsn: int | None = None) -> Mark:
    lsn = Lsn(offset if end_lsn is None else end_lsn)
    return Mark(
        sequence=sequence, offset=offset, position=Position(lsn, 0), end_lsn=lsn, time=0, epoch=1
    )


def reached(gate: Gate, lsn: int) -> bool:
    gate.refresh()
    return gate.limit(mark(100)) == lsn


def test_without_followers_the_durable_mark_counts(tmp_path: Path) -> None:
    assert Gate(LocalStore(tmp_path)).limit(mark(100)) == 100


def test_before_the_first_quorum_nothing_is_acknowledged(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    acknowledged.prepare(store, 1)
    assert Gate(store, 1).limit(mark(100)) == 0


def test_the_gate_opens_with_the_quorum(tmp_path: Path) -> None:
    """GIVEN two followers and a quorum of two THEN the slower one counts."""
    store = LocalStore(tmp_path)
    acknowledged.prepare(store, 2)
    gate, quorum = Gate(store, 2), Quorum(store, 2, hides=False)
    quorum.note("a", mark(100))
    assert quorum.mark is None
    quorum.note("b", mark(60))
    wait_for(lambda: reached(gate, 60))
    quorum.note("b", mark(200))
    wait_for(lambda: reached(gate, 100))


def test_a_quorum_never_goes_back(tmp_path: Path) -> None:
    """PostgreSQL may have forgotten what a quorum had once."""
    store = LocalStore(tmp_path)
    acknowledged.prepare(store, 1)
    quorum = Quorum(store, 1, hides=False)
    quorum.note("a", mark(100))
    quorum.forget("a")
    quorum.note("a", mark(50))
    assert quorum.mark == mark(100)
    assert acknowledged.read(store, 1) == mark(100)
    assert Quorum(store, 1, hides=False).mark == mark(100)


def test_a_quorum_of_other_settings_does_not_count(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    acknowledged.prepare(store, 1)
    Quorum(store, 1, hides=False).note("a", mark(100))
    acknowledged.prepare(store, 2)
    assert Gate(store, 2).limit(mark(100)) == 0
    assert "quorum-1" not in store.names()


def test_a_timeline_that_began_before_the_end_of_the_log(tmp_path: Path) -> None:
    """After a failover of PostgreSQL a log may go on at a lower LSN: never more than both."""
    store = LocalStore(tmp_path)
    acknowledged.prepare(store, 1)
    Quorum(store, 1, hides=False).note("a", mark(100, end_lsn=900))
    later = replace(mark(10, sequence=2), end_lsn=Lsn(700))
    assert Gate(store, 1).limit(later) == 700


def test_a_file_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    """GIVEN a file that was replaced, of which the kernel tells nothing THEN the gate opens all the
    same, about a second later."""
    store, now = LocalStore(tmp_path), [0.0]
    acknowledged.prepare(store, 1)
    gate = Gate(store, 1, clock=lambda: now[0])
    store.write_atomic("quorum-1", mark(60).encode())
    gate.refresh()
    now[0] += 2
    assert reached(gate, 60)


def test_both_processes_may_create_the_file(tmp_path: Path) -> None:
    """GIVEN a quorum before capture has prepared its file THEN capture keeps it; and a later mark
    is in the same file, which capture watches."""
    store = LocalStore(tmp_path)
    quorum = Quorum(store, 1, hides=False)
    quorum.note("a", mark(60))
    acknowledged.prepare(store, 1)
    assert acknowledged.read(store, 1) == mark(60)
    gate = Gate(store, 1, clock=lambda: 0.0)
    store.remove("quorum-1")
    acknowledged.prepare(store, 1)
    watched = Gate(store, 1, clock=lambda: 0.0)
    quorum.note("a", mark(100))
    wait_for(lambda: reached(watched, 100))
    assert gate.limit(mark(100)) == 60


def test_a_follower_with_two_addresses_counts_once(tmp_path: Path) -> None:
    """GIVEN a quorum of two WHEN one copy has two addresses THEN it is one; also if it starts over,
    or another machine takes its address."""
    quorum = Quorum(LocalStore(tmp_path), 2, hides=False)
    for address in ("db2:1", "db2.example.org:1"):
        quorum.note(address, mark(50), follower="a")
    assert quorum.mark is None
    quorum.note("db3:1", mark(40), follower="b")
    assert quorum.mark == mark(40)
    quorum.forget("db2:1", follower="a")
    quorum.note("db3:1", mark(90), follower="b")
    assert quorum.mark == mark(40)
    quorum.note("db3:1", mark(95), follower="c")
    assert quorum.mark == mark(40)
    quorum.note("db2:1", mark(70), follower="a")
    assert quorum.mark == mark(70)
