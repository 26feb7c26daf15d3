"""Which bundles a leader makes, and how one follower gets those that it lacks."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, cast

from tailrace.log.format import mark as marks
from tailrace.observe.figure import Recorder
from tailrace.observe.replica import FollowerFigures
from tailrace.replica.bundle import Bundle, Bundler
from tailrace.replica.frames import Stored, Type
from tailrace.replica.small_state import SHARED
from tailrace.replica.states import States, Transfer
from tests.unit.replica.state_files import ORDERS, received, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tailrace.log.store import LocalStore


def bundles_of(states: States) -> Mapping[str, Bundle]:
    assert states.newest is not None
    return states.newest.bundles


def test_only_what_has_changed_is_made_again(data: Path, store: LocalStore) -> None:
    states = States(data, store, every_s=1.0)
    states.refresh(hurry=True)
    first = bundles_of(states)
    assert sorted(first) == [ORDERS, SHARED]
    states.refresh(hurry=True)
    assert bundles_of(states)[ORDERS] is first[ORDERS]
    with sqlite3.connect(data / "parked/orders/parked.db") as connection:
        connection.execute("INSERT INTO parked VALUES (3)")
    states.refresh(hurry=True)
    assert bundles_of(states)[ORDERS] is not first[ORDERS]
    assert bundles_of(states)[SHARED] is first[SHARED]


def test_state_that_waits_for_adoption_is_not_replaced_by_older(
    data: Path, store: LocalStore, tmp_path: Path
) -> None:
    """GIVEN a new leader that has not adopted yet THEN it sends nothing of its own."""
    received(data, Bundler(data, store).make(ORDERS))
    states = States(data, store, every_s=1.0)
    states.refresh()
    assert states.newest is None


def test_what_cannot_be_read_is_left_out(data: Path, store: LocalStore) -> None:
    """GIVEN a damaged database THEN the other bundles are made."""
    write(data / "parked/broken/parked.db", "no database, and of some length")
    states = States(data, store, every_s=1.0)
    states.refresh()
    assert sorted(bundles_of(states)) == [ORDERS, SHARED]


class Wire:
    """The leader's side of a connection: the frames that it sends."""

    def __init__(self) -> None:
        self.frames: list[tuple[Type, Any]] = []

    def say(self, kind: Type, message: Any) -> None:
        self.frames.append((kind, message))

    def send(self, kind: Type, *parts: Any, compress: bool = False) -> None:
        self.frames.append((kind, b"".join(parts)))

    def of(self, kind: Type) -> list[Any]:
        return [message for each, message in self.frames if each is kind]


class Sending:
    """A transfer over a wire, with a clock."""

    def __init__(self, states: States, store: LocalStore) -> None:
        self.wire, self.now = Wire(), 0.0
        self.counts = Recorder(FollowerFigures())
        self.transfer = Transfer(
            states, cast("Any", self.wire), self.counts, clock=lambda: self.now
        )
        mark = marks.peek(store)
        assert mark is not None
        self.mark = mark

    def run(self) -> None:
        """Until there is nothing more to send."""
        while self.transfer.step(self.mark, None):
            pass


def test_what_cannot_be_read_stays_on_followers(data: Path, store: LocalStore) -> None:
    """GIVEN a leader that has just started and cannot read a pipeline's state THEN its followers
    keep what they have of it; WHEN the pipeline is removed THEN they remove it, too."""
    write(data / "parked/broken/parked.db", "no database, and of some length")
    states = States(data, store, every_s=1.0)
    states.refresh()
    sending = Sending(states, store)
    sending.run()
    assert "pipeline.broken" not in bundles_of(states)
    [names] = sending.wire.of(Type.BUNDLES)
    assert set(names.names) == {ORDERS, SHARED, "pipeline.broken"}
    (data / "parked/broken/parked.db").unlink()
    (data / "parked/broken").rmdir()
    states.refresh()
    sending.run()
    assert set(sending.wire.of(Type.BUNDLES)[-1].names) == {ORDERS, SHARED}


def test_a_bundle_that_was_not_stored_is_sent_again(data: Path, store: LocalStore) -> None:
    """GIVEN a follower without space for a bundle THEN it counts as lacking and is sent again, some
    seconds later, until it is stored."""
    states = States(data, store, every_s=1.0)
    states.refresh()
    sending = Sending(states, store)

    def sent() -> int:
        sending.run()
        return sum(head.name == ORDERS for head in sending.wire.of(Type.BUNDLE))

    assert (sent(), sent()) == (1, 1)
    assert sending.counts.figures.state_lacking == 2
    sending.now += 60
    assert (sent(), sent()) == (2, 2)
    for bundle in bundles_of(states).values():
        sending.transfer.stored(Stored(name=bundle.name, crc=bundle.crc))
    sending.now += 60
    assert sent() == 2
    assert sending.counts.figures.state_lacking == 0
