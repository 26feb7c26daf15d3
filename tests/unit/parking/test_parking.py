"""Parking over micro-batches, as the planner and tasks use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import SinkFencedError, SinkUnreachableError
from tailrace.parking.listing import Listing
from tailrace.parking.parking import TaskParking, orders_wait, store_of
from tailrace.parking.part import Parts
from tailrace.pipeline.guard import Flushes, ParkingGuard
from tailrace.position import ORIGIN, READS, Lsn, Position
from tailrace.sinks.contract import Receipt
from tests.unit.parking.system import HISTORY, AllOrNothing, System, end_of, messages
from tests.unit.sinks.rows import with_groups

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_a_refused_message_blocks_its_key_and_no_other(system: System) -> None:
    system.sink.bad = {"a1"}
    receipt = system.deliver([("a1", "a"), ("b1", "b"), ("a2", "a")], lsn=100)
    assert receipt == Receipt(messages=1, parked=2)
    system.deliver([("a3", "a"), ("b2", "b")], lsn=200)
    assert system.sink.received == ["b1", "b2"]
    assert system.parked() == [("a1", "HTTP_422", 1), ("a2", "HELD", 0), ("a3", "HELD", 0)]


def test_a_retry_delivers_a_key_in_order_and_frees_it(system: System) -> None:
    system.sink.bad = {"a1"}
    system.deliver([("a1", "a"), ("b1", "b"), ("a2", "a")], lsn=100)
    system.sink.bad = set()
    system.order("retry", ids=("a1",))
    assert orders_wait(system.folder)
    system.deliver([("a3", "a")], lsn=200)
    assert system.sink.received == ["b1", "a1", "a2", "a3"]
    assert system.parked() == []
    assert not orders_wait(system.folder)
    # Positions grow: sinks rely on it.
    assert system.sink.positions == sorted(system.sink.positions)
    assert system.sink.positions[1].lsn == 100
    assert system.sink.positions[1].ordinal > READS


def test_a_message_that_is_refused_again_keeps_its_key_blocked(system: System) -> None:
    system.sink.bad = {"a1"}
    system.deliver([("a1", "a"), ("a2", "a"), ("c1", "c")], lsn=100)
    system.sink.bad = {"a1", "c2"}
    system.order("retry")
    system.deliver([("a3", "a"), ("c2", "c")], lsn=200)
    assert system.sink.received == ["c1"]
    assert system.parked() == [
        ("a1", "HTTP_422", 2),
        ("a2", "HELD", 0),
        ("a3", "HELD", 0),
        ("c2", "HTTP_422", 1),
    ]
    with Listing(store_of(system.folder)) as listing:
        (order,) = listing.orders()
    assert (order.matched, order.delivered, order.failed, order.waiting) == (2, 0, 1, 0)


def test_dropped_messages_are_gone_and_the_rest_of_the_key_waits(system: System) -> None:
    system.sink.bad = {"a1"}
    system.deliver([("a1", "a"), ("a2", "a")], lsn=100)
    system.order("drop", ids=("a1",))
    system.deliver([("a3", "a")], lsn=200)
    assert system.parked() == [("a2", "HELD", 0), ("a3", "HELD", 0)]
    system.order("retry", key="a")
    system.deliver([("a4", "a")], lsn=300)
    assert system.sink.received == ["a2", "a3", "a4"]


def test_a_message_alone(tmp_path: Path) -> None:
    system = System(tmp_path, together=False)
    system.sink.bad = {"a1", "a3"}
    system.deliver([("a1", "a"), ("a2", "a"), ("a3", "a")], lsn=100)
    assert system.sink.received == ["a2"]
    system.sink.bad = {"a1"}
    system.order("retry", ids=("a3",))
    system.deliver([("a4", "a")], lsn=200)
    assert system.sink.received == ["a2", "a3", "a4"]
    assert [name for name, _, _ in system.parked()] == ["a1"]


def test_what_an_interrupted_batch_has_parked_stays_parked(system: System) -> None:
    """A sink may have stored its position after the message: it would not take it any more."""
    system.sink.bad = {"a1"}
    guard = system.guard()
    guard.write(messages([("a1", "a"), ("b1", "b"), ("a2", "a")], lsn=100))
    guard.flush()
    system.sink.bad = set()
    system.restart()
    system.deliver([("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a")], lsn=100)
    assert system.parked() == [("a1", "HTTP_422", 1), ("a2", "HELD", 0), ("a3", "HELD", 0)]
    assert system.sink.received == ["b1", "b1"]


def test_a_replay_from_the_middle_of_a_batch_holds_back_what_its_beginning_parked(
    system: System,
) -> None:
    system.sink.bad = {"a1"}
    guard = system.guard()
    guard.write(messages([("a1", "a"), ("b1", "b")], lsn=100))
    guard.flush()
    guard.write(messages([("c1", "c"), ("a2", "a")], lsn=200))
    guard.flush()
    # The task had noted its progress after the first flush.
    system.position = end_of(100)
    system.restart()
    system.deliver([("c1", "c"), ("a2", "a")], lsn=200)
    assert system.sink.received == ["b1", "c1", "c1"]
    assert [name for name, _, _ in system.parked()] == ["a1", "a2"]


def test_a_release_that_is_interrupted_after_its_flush_is_not_delivered_again(
    system: System,
) -> None:
    system.sink.bad = {"a1"}
    system.deliver([("a1", "a"), ("a2", "a")], lsn=100)
    system.order("retry")
    release = system.planner.plan(system.position, page=0, released=0)
    assert release is not None
    system.sink.bad = set()
    task = TaskParking(system.folder, history=HISTORY, run=system.run)
    system.guard().release(task.release(release.number))
    system.restart()
    system.guard().release(
        TaskParking(system.folder, history=HISTORY, run=system.run).release(release.number)
    )
    system.position, system.released = release.last, release.number
    assert system.parked() == []
    assert system.sink.received == ["a1", "a2"]


def test_a_replaced_task_parks_nothing(system: System) -> None:
    system.sink.bad = {"a1"}
    guard = system.guard()
    guard.write(messages([("a1", "a")], lsn=100))
    system.restart()
    with pytest.raises(SinkFencedError):
        guard.flush()


def test_a_release_that_is_repeated_after_a_restart_frees_the_key(system: System) -> None:
    system.sink.bad = {"a1"}
    system.deliver([("a1", "a")], lsn=100)
    system.order("retry")
    release = system.planner.plan(system.position, page=0, released=0)
    assert release is not None
    # The query restarts before the batch of the release is committed, which is then repeated.
    system.restart()
    system.sink.bad = set()
    task = TaskParking(system.folder, history=HISTORY, run=system.run)
    system.guard().release(task.release(release.number))
    system.position, system.released = release.last, release.number
    system.deliver([("a2", "a")], lsn=200)
    assert system.sink.received == ["a1", "a2"]
    assert system.parked() == []


def test_a_group_is_blocked_with_all_its_keys_and_kept(system: System) -> None:
    """GIVEN messages with groups WHEN one is refused THEN its group waits, with other keys and
    tables, and is released with the groups that it was parked with."""
    same, other = (b"a", b"a"), (b"b", b"b")
    first = messages([("1", "x"), ("2", "y"), ("3", "x"), ("4", None), ("5", "z")], lsn=100)
    system.sink.bad = {"1", "4"}
    system.deliver_batch(with_groups(first, [same, same, other, same, None]), lsn=100)
    assert system.sink.received == ["3", "5"]
    system.order("retry")
    second = messages([("6", "z"), ("7", "x"), ("8", "w")], lsn=200)
    system.sink.bad = {"4"}
    system.deliver_batch(with_groups(second, [None, same, (b"b", b"a")]), lsn=200)
    assert system.sink.received == ["3", "5", "1", "2", "6"]
    assert [name for name, _, _ in system.parked()] == ["4", "7", "8"]
    system.sink.bad = set()
    system.order("retry")
    system.deliver([], lsn=300)
    assert system.sink.received[5:] == ["4", "7", "8"]


def test_messages_without_a_key_hold_back_their_table(system: System) -> None:
    system.sink.bad = {"t1"}
    system.deliver([("a1", "a"), ("t1", None), ("b1", "b")], lsn=100)
    assert system.sink.received == ["a1"]
    system.sink.bad = set()
    system.order("retry", ids=("b1",))
    system.deliver([("b2", "b")], lsn=200)
    assert system.sink.received == ["a1", "t1", "b1", "b2"]


def test_after_a_reset_parked_messages_of_the_earlier_history_block_nothing(
    system: System,
) -> None:
    system.sink.bad = {"a1"}
    system.deliver([("a1", "a")], lsn=100)
    system.position, system.released = ORIGIN, 0
    system.restart(history="5f0c2a9e+1")
    system.deliver([("a1", "a"), ("a2", "a")], lsn=100)
    assert len(system.parked()) == 3
    system.sink.bad = set()
    system.order("retry")
    system.deliver([], lsn=200)
    assert system.sink.received == ["a1", "a2"]
    # The one of the earlier history stays until it is dropped.
    assert [name for name, _, _ in system.parked()] == ["a1"]


def test_many_messages_are_released_in_pages(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.parking.parking.RELEASE_ROWS", 3)
    system.sink.bad = {"a0"}
    names = [(f"a{number}", "a") for number in range(8)]
    system.deliver(names, lsn=100)
    system.sink.bad = {"a4"}
    system.order("retry")
    assert system.release()
    assert system.release()
    assert not system.release()
    assert system.sink.received == ["a0", "a1", "a2", "a3"]
    assert [name for name, _, _ in system.parked()] == ["a4", "a5", "a6", "a7"]


def test_what_is_parked_is_durable_before_the_sink_may_store_the_position(system: System) -> None:
    """GIVEN a sink that stores the position with the messages WHEN the task dies after that THEN
    the refused message before it is parked."""
    system.sink.bad = {"a1"}
    task = TaskParking(system.folder, history=HISTORY, run=system.run)
    flushes = Flushes(stores_position=True)
    guard = ParkingGuard(system.sink, flushes, task, blocks=True, now_us=lambda: 9)
    guard.begin(system.position)
    guard.write(messages([("a1", "a"), ("b1", "b"), ("a2", "a")], lsn=100))
    [part] = Parts(system.folder / "parts").all()
    assert part.last == Position(Lsn(100), 2)


def test_a_sink_that_stores_nothing_after_a_refusal_gets_the_rest_again(system: System) -> None:
    """GIVEN a sink whose flush stores all or nothing, and a message that only the server refuses
    THEN the guard parks it and later ones of its key, and writes the others again, also those of
    its key before it."""
    sink = AllOrNothing({"b1"})
    task = TaskParking(system.folder, history=HISTORY, run=system.run)
    flushes = Flushes(stores_position=True, all_or_nothing=True)
    guard = ParkingGuard(sink, flushes, task, blocks=True, now_us=lambda: 9)
    guard.begin(system.position)
    guard.write(messages([("a1", "a"), ("b0", "b"), ("b1", "b")], lsn=100))
    guard.write(messages([("b2", "b"), ("a2", "a")], lsn=200))
    # b1 was sent and refused; b2 was not sent.
    assert guard.flush() == Receipt(messages=3, parked=2, failed=1)
    assert sink.received == ["a1", "b0", "a2"]
    system.position = end_of(200)
    assert [name for name, _, _ in system.parked()] == ["b1", "b2"]


def test_a_large_transaction_is_delivered_again_without_what_was_refused(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a sink whose flush stores all or nothing, and more messages than the guard keeps WHEN
    one is refused THEN it is parked with its followers, the batch fails for now, and its replay
    delivers all others."""
    monkeypatch.setattr("tailrace.pipeline.guard._REWRITE_BYTES", 2000)
    batches = [
        messages([(f"b{lsn}", "b"), *((f"{lsn}-{at}", f"{at}") for at in range(5))], lsn=lsn)
        for lsn in range(100, 110)
    ]
    sink = AllOrNothing({"b103"})
    flushes = Flushes(stores_position=True, all_or_nothing=True)

    def attempt() -> ParkingGuard:
        task = TaskParking(system.folder, history=HISTORY, run=system.run)
        guard = ParkingGuard(sink, flushes, task, blocks=True, now_us=lambda: 9)
        guard.begin(system.position)
        for batch in batches:
            guard.write(batch)
            assert sum(each.nbytes for each in guard._unflushed) <= 2000
        return guard

    guard = attempt()
    with pytest.raises(SinkUnreachableError, match="delivered again"):
        guard.flush()
    assert sink.received == []
    system.restart()
    held = [f"b{lsn}" for lsn in range(104, 110)]
    expected = [name.decode() for batch in batches for name in batch["id"].to_pylist()]
    expected = [name for name in expected if name not in {"b103", *held}]
    assert attempt().flush() == Receipt(messages=len(expected))
    assert sink.received == expected
    system.position = end_of(109)
    assert [name for name, _, _ in system.parked()] == ["b103", *held]
