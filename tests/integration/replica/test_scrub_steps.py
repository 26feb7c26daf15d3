"""Scrub, a step at a time: without a leader, so that a test says what comes and when."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tailrace.config import load
from tailrace.log.format.segment import list_segments
from tailrace.log.store import LocalStore
from tailrace.observe.figure import Recorder
from tailrace.observe.replica import FollowingFigures
from tailrace.replica.copy import Copy
from tailrace.replica.frames import Data, Fetched, Type
from tailrace.replica.outgoing import Outgoing
from tailrace.replica.scrub import Scrub
from tests.integration.replica.damage import file_of, flip

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.replica.cluster import Source


class Sent:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.kinds: list[Type] = []

    def send(self, kind: Type, *_: object) -> None:
        self.kinds.append(kind)


def fetched(source: Source, copy: Scrubbed, number: int) -> None:
    """The whole segment has come, and waits to be checked."""
    flip(file_of(copy.store, number))
    copy.ask()
    name = list_segments(source.store)[number]
    for data in Outgoing(source.store, name.sequence, 0).segment(name.sequence):
        copy.scrub.take(data, 0)
    size = source.store.size(name.file)
    copy.scrub.finish(Fetched(sequence=name.sequence, size=size), 0)


class Scrubbed:
    """A copy of a log with its scrub, without a connection."""

    def __init__(self, source: Source, folder: Path) -> None:
        shutil.copytree(source.store.folder, folder)
        self.store = LocalStore(folder)
        self.copy = Copy(self.store)
        self.copy.open()
        settings = load(None, {"replication": {}}).replication
        self.counts = Recorder(FollowingFigures())
        self.scrub = Scrub(self.copy, settings, self.counts)
        self.sent = Sent()
        self._now = 0.0

    def step(self) -> None:
        self._now += 1
        self.scrub.step(self._now, self.sent)  # type: ignore[arg-type]

    def ask(self) -> None:
        while Type.FETCH not in self.sent.kinds:
            self.step()


def test_a_segment_that_was_deleted_meanwhile_does_not_come_back(
    source: Source, tmp_path: Path
) -> None:
    """GIVEN a segment that has come and is not installed WHEN the follower deletes it with the
    leader's THEN it stays deleted: there would be a hole in the log."""
    source.append(60)
    copy = Scrubbed(source, tmp_path / "copy")
    names = list_segments(copy.store)
    fetched(source, copy, 2)
    copy.copy.delete_before(names[5].sequence)
    for _ in range(20):
        copy.step()
    assert list_segments(copy.store) == names[5:]
    assert not list(copy.store.folder.glob("*.tmp"))
    assert copy.scrub.reason == ""


def test_what_a_leader_sends_wrongly_is_not_taken(source: Source, tmp_path: Path) -> None:
    """GIVEN pieces of another segment, or too few THEN the follower keeps what it has, says so, and
    asks again later."""
    source.append(60)
    copy = Scrubbed(source, tmp_path / "copy")
    flip(file_of(copy.store, 2))
    damaged = file_of(copy.store, 2).read_bytes()
    copy.ask()
    name, other = list_segments(source.store)[2:4]
    [first, *_] = Outgoing(source.store, other.sequence, 0).segment(other.sequence)
    copy.scrub.take(first, 0)
    assert f"segment {other.sequence} in place of" in copy.scrub.reason
    for _ in range(100):
        copy.step()
    assert copy.sent.kinds.count(Type.FETCH) == 2
    [first, *_] = Outgoing(source.store, name.sequence, 0).segment(name.sequence)
    half = Data(name.sequence, name.base_lsn, 0, index=False, content=first.content[:99])
    copy.scrub.take(half, 0)
    copy.scrub.finish(Fetched(sequence=name.sequence, size=source.store.size(name.file)), 0)
    copy.step()
    assert "99 have come" in copy.scrub.reason
    assert file_of(copy.store, 2).read_bytes() == damaged
    assert not list(copy.store.folder.glob("*.tmp"))
