"""One machine wins a term, and an interrupted takeover can be repeated."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import config
from tailrace.capture import session
from tailrace.capture.capture import Capture
from tailrace.capture.replication import Replication
from tailrace.errors import (
    GapError,
    PostgresRefusedError,
    SlotBusyError,
    TailraceError,
    TakenOverError,
)
from tailrace.log import lease
from tailrace.log.term import first_epoch
from tailrace.postgres import slot_terms
from tailrace.postgres.slot_terms import copy_slot
from tailrace.replica import takeover
from tailrace.replica.takeover import take_over
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.replica.machines import Machine

FENCED, SLOT_BUSY = 15, 21
FAILPOINTS = ("takeover.after-copy", "takeover.after-lease", "takeover.after-terminate")


def test_a_live_leader_is_not_deposed_without_force(pair: tuple[Machine, Machine]) -> None:
    leader, other = pair
    cluster = leader.cluster
    process = leader.paused()
    other.copy_log(leader)
    files = other.files()
    done = other.takeover("--yes")
    assert done.returncode == SLOT_BUSY
    assert f"slot {cluster.slot} is active: server process" in done.stderr
    assert "--force" in done.stderr
    with pytest.raises(SlotBusyError):
        take_over(other.config, other.store)
    shown = other.takeover("--dry-run")
    assert shown.returncode == 0
    assert f"reads {cluster.slot}" in shown.stdout
    assert "needs --force" in shown.stdout
    assert cluster.slots() == [cluster.slot]
    assert other.files() == files
    process.signal(signal.SIGCONT)
    holds(lambda: process.alive, 0.5, "the leader runs")


def test_a_second_candidate_finds_the_name_taken(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = pair
    cluster, files = leader.cluster, leader.files()
    _before_copy(
        monkeypatch,
        lambda: cluster.database.query(
            "SELECT pg_copy_logical_replication_slot(%s, %s)", cluster.slot, cluster.slot_of(1)
        ),
    )
    with pytest.raises(TakenOverError, match="already exists: another candidate"):
        take_over(other.config, other.store)
    assert cluster.slots() == [cluster.slot, cluster.slot_of(1)]
    assert leader.files() == files
    assert other.term == 0


def test_a_second_candidate_finds_the_slot_dropped(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = pair
    third = leader.cluster.machine("third")
    third.copy_log(leader)
    _before_copy(monkeypatch, other.take_over)
    with pytest.raises(TakenOverError, match="has just been dropped"):
        take_over(third.config, third.store)
    assert leader.cluster.slots() == [leader.cluster.slot_of(1)]
    assert third.term == 0
    other.catch_up()


def test_a_candidate_that_was_too_slow_drops_what_it_created(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a candidate that has read the slots WHEN two others take over, and the slot of term 0
    is still there THEN it does not come into possession of term 1."""
    leader, other = pair
    cluster, database = leader.cluster, leader.cluster.database

    def two_takeovers() -> None:
        other.take_over()
        other.take_over()
        copy = "SELECT pg_copy_logical_replication_slot(%s, %s)"
        database.query(copy, cluster.slot_of(2), cluster.slot)

    _before_copy(monkeypatch, two_takeovers)
    with pytest.raises(TakenOverError, match=f"slot {cluster.slot_of(2)} has just been created"):
        take_over(leader.config, leader.store)
    assert cluster.slots() == [cluster.slot, cluster.slot_of(2)]
    assert leader.term == 0


def test_a_candidate_that_was_left_behind_meanwhile_does_not_win(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN mode sync, and a candidate whose log has every change and ends in term 0 WHEN the
    leader of term 1 drops the slot of term 0 after the candidate has listed it THEN the candidate
    drops its copy: a quorum has entries of term 1, which its followers would remove."""
    _, other = pair
    cluster, database = other.cluster, other.cluster.database
    copy, drop = "SELECT pg_copy_logical_replication_slot(%s, %s)", "pg_drop_replication_slot(%s)"
    database.query(copy, cluster.slot, cluster.slot_of(1))
    _before_copy(monkeypatch, lambda: database.query(f"SELECT {drop}", cluster.slot))
    sync = {"followers": ["127.0.0.1:1"], "mode": "sync"}
    with pytest.raises(GapError, match=f"the oldest slot is {cluster.slot_of(1)}"):
        take_over(config.load(other.config_file, {"replication": sync}), other.store)
    assert cluster.slots() == [cluster.slot_of(1)]
    assert other.term == 0


def test_a_candidate_that_is_overtaken_at_the_end_says_so(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a candidate that has won a term WHEN another takes over before it writes its lease THEN
    it does not claim to be the leader."""
    leader, other = pair
    cluster = leader.cluster

    def overtaken(*arguments: Any) -> int:
        other.take_over()
        return lease.raise_epoch(*arguments)

    monkeypatch.setattr(takeover, "raise_epoch", overtaken)
    with pytest.raises(TakenOverError, match=f"slot {cluster.slot_of(2)} of term 2 exists"):
        take_over(leader.config, leader.store)
    monkeypatch.undo()
    assert cluster.slots() == [cluster.slot_of(2)]
    assert (leader.term, other.term) == (1, 2)
    assert leader.capture().wait() == FENCED
    other.catch_up()
    assert other.check() == 3


def test_of_candidates_at_the_same_time_one_wins(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = pair
    cluster = leader.cluster
    third = cluster.machine("third")
    third.copy_log(leader)
    together = threading.Barrier(2)
    _before_copy(monkeypatch, together.wait, once=False)
    outcomes: dict[str, TailraceError | int] = {}

    def attempt(machine: Machine) -> None:
        try:
            outcomes[machine.folder.name] = take_over(machine.config, machine.store).term
        except TailraceError as error:
            outcomes[machine.folder.name] = error

    threads = [threading.Thread(target=attempt, args=(each,)) for each in (other, third)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [loser] = [each for each in outcomes.values() if not isinstance(each, int)]
    assert isinstance(loser, TakenOverError)
    assert [each for each in outcomes.values() if isinstance(each, int)] == [1]
    assert cluster.slots() == [cluster.slot_of(1)]
    winner = other if outcomes["other"] == 1 else third
    winner.catch_up()
    assert winner.check() == 3
    assert {other.term, third.term} == {0, 1}


def _before_copy(
    monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], *, once: bool = True
) -> None:
    """Do something after a candidate has read the slots, before it copies one."""

    def copy_later(*names: object) -> None:
        if once:
            monkeypatch.setattr(takeover, "copy_slot", copy_slot)
        action()
        copy_slot(*names)  # type: ignore[arg-type]

    monkeypatch.setattr(takeover, "copy_slot", copy_later)


def test_the_name_is_a_slot_of_another_database(pair: tuple[Machine, Machine]) -> None:
    _, other = pair
    cluster, server = other.cluster, other.cluster.database.server
    name = server.create_database("foreign")
    try:
        with server.connect(name) as connection:
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (cluster.slot_of(1),)
            )
        with pytest.raises(PostgresRefusedError, match=f"already exists, in database {name}"):
            take_over(other.config, other.store)
        # It fences nobody either.
        other.catch_up()
    finally:
        server.drop_database(name)


@pytest.mark.parametrize("point", FAILPOINTS)
@pytest.mark.parametrize("alive", [False, True], ids=["dead", "alive"])
def test_an_interrupted_takeover_is_repeated(
    pair: tuple[Machine, Machine], point: str, alive: bool
) -> None:
    """GIVEN a takeover that was killed WHEN it is repeated THEN one slot is left and the log has
    its term, as after one that was not interrupted."""
    leader, other = pair
    cluster = leader.cluster
    old = leader.paused() if alive else None
    if alive:
        other.copy_log(leader)
    force = ("--force",) if alive else ()
    killed = other.takeover("--yes", *force, failpoints=f"{point}=kill")
    assert killed.returncode == -signal.SIGKILL
    assert cluster.slot_of(1) in cluster.slots()
    assert other.term == (0 if point == "takeover.after-copy" else 1)
    other.take_over(*force)
    assert cluster.slots() == [cluster.slot_of(2)]
    assert lease.last_epoch(other.store) == first_epoch(2)
    if old is not None:
        old.signal(signal.SIGCONT)
        assert old.wait() == FENCED
    cluster.insert(10)
    other.catch_up()
    assert other.check() == 4
    assert leader.capture().wait() == FENCED


@pytest.mark.parametrize("point", FAILPOINTS)
def test_another_machine_finishes_an_interrupted_takeover(
    pair: tuple[Machine, Machine], point: str
) -> None:
    """Also the old leader: it is fenced, but its log is as good as any."""
    leader, other = pair
    cluster = leader.cluster
    other.takeover("--yes", failpoints=f"{point}=kill")
    assert leader.capture().wait() == FENCED
    leader.take_over()
    cluster.insert(10)
    leader.catch_up()
    assert leader.check() == 4
    assert cluster.slots() == [cluster.slot_of(2)]
    fenced = other.capture()
    assert fenced.wait() == FENCED, fenced.output


def test_capture_after_an_interrupted_takeover(pair: tuple[Machine, Machine]) -> None:
    """GIVEN a takeover that was killed once it had counted WHEN capture starts THEN it captures in
    the new term, and warns of the slot that is left."""
    leader, other = pair
    cluster = leader.cluster
    other.takeover("--yes", failpoints="takeover.after-lease=kill")
    cluster.insert(10)
    process = other.streaming()
    end = cluster.server_end()
    process.wait_until(lambda: other.log.end().end_lsn >= end, "the new leader")
    process.wait_until(lambda: "capture.old_slot_exists" in process.output, "the warning")
    assert leader.capture().wait() == FENCED
    process.stop()
    assert other.check() == 4


def test_an_old_slot_that_cannot_be_dropped_is_a_warning(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = pair
    cluster = leader.cluster
    for module in (takeover, slot_terms):
        monkeypatch.setattr(module, "end_reader", lambda *_: None)
    old = leader.paused()
    other.copy_log(leader)
    done = take_over(other.config, other.store, force=True, drop_s=0)
    assert done.term == 1
    assert done.dropped == ()
    [warning] = done.warnings
    assert f"slot {cluster.slot} was not dropped" in warning
    assert f"pg_drop_replication_slot('{cluster.slot}')" in warning
    assert old.alive
    other.streaming()


# The old leader


def test_a_leader_that_connects_while_its_slot_is_dropped(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a leader that has found its slot WHEN the slot is dropped before it reads it THEN it is
    FENCED: nothing is lost."""
    leader, other = pair
    start = Replication.start

    def start_late(*arguments: Any, **options: Any) -> None:
        other.take_over()
        start(*arguments, **options)

    monkeypatch.setattr(Replication, "start", start_late)
    with pytest.raises(TakenOverError, match="of term 1 exists"):
        Capture(leader.config, stopping=lambda: False).run()
    monkeypatch.undo()
    other.catch_up()
    assert other.check() == 3


def test_a_leader_that_connects_while_its_slot_is_copied(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a leader that has found its slot and no later one WHEN it begins to stream after the
    slot was copied THEN it captures nothing more."""
    leader, other = pair
    cluster, files = leader.cluster, leader.files()
    start = Replication.start

    def start_late(*arguments: Any, **options: Any) -> None:
        other.takeover("--yes", failpoints="takeover.after-copy=kill")
        cluster.insert(10)
        start(*arguments, **options)

    monkeypatch.setattr(Replication, "start", start_late)
    with pytest.raises(TakenOverError, match="of term 1 exists"):
        Capture(leader.config, stopping=lambda: False).run()
    segments = {name for name in files if name.endswith(".seg")}
    assert {name: leader.files()[name] for name in segments} == {
        name: files[name] for name in segments
    }


def test_a_leader_that_streams_notices_a_takeover_that_was_not_finished(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a candidate that died after its copy and left the leader's session alone THEN the
    leader finds the slot of the later term, and is FENCED."""
    leader, other = pair
    cluster = leader.cluster
    monkeypatch.setattr(session, "_HOUSEKEEPING_S", 0.1)
    settings = config.load(leader.config_file, {"replication": {"followers": ["127.0.0.1:1"]}})
    capture = Capture(settings, stopping=lambda: False)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            capture.run()
        except TailraceError as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_for(lambda: cluster.active(0), "the session")
    other.takeover("--yes", "--force", failpoints="takeover.after-copy=kill")
    thread.join(60)
    [failure] = failures
    assert isinstance(failure, TakenOverError)
    other.take_over()
    other.catch_up()
    assert other.check() == 3
