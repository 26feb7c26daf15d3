"""What happens to one follower: a slow line, a pause, a full disk, bytes that rot."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import DiskFullError
from tailrace.log.format.segment import list_segments
from tailrace.testing import TcpProxy
from tests import command
from tests.faults.disk import mounted
from tests.faults.harness import Writers
from tests.faults.members import Member, Reader
from tests.integration.replica.cluster import free_port
from tests.integration.replica.machines import Cluster
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

    Build = Callable[..., "Pair"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


class Pair:
    """A leader and its followers, each over a line of its own."""

    def __init__(
        self, cluster: Cluster, folder: Path, followers: int, log: dict[str, Any], **settings: Any
    ) -> None:
        self.cluster = cluster
        ports = [free_port() for _ in range(followers)]
        self.lines = [TcpProxy("127.0.0.1", port) for port in ports]
        addresses = [f"127.0.0.1:{line.port}" for line in self.lines]
        own = f"127.0.0.1:{free_port()}"
        self.leader = Member(cluster, folder / "leader", own, addresses, log=log, **settings)
        self.followers = [
            Member(cluster, folder / f"follower-{port}", f"127.0.0.1:{port}", [], mode="async",
                   visible="durable", **_following(settings))
            for port in ports
        ]  # fmt: skip
        self.reader = Reader()

    def start(self) -> None:
        for each in self.followers:
            each.run("follow")
        self.leader.lead()

    def end(self) -> None:
        for each in (self.leader, *self.followers):
            each.signal(signal.SIGCONT)
            each.end()
        for line in self.lines:
            line.close()

    def flowing(self, rows: int = 500) -> None:
        """Readers of the leader see more and more."""
        before = len(self.reader.rows)

        def more() -> bool:
            self.reader.read(self.leader)
            return len(self.reader.rows) > before + rows

        wait_for(more, lambda: self.leader.output()[-3000:])

    def check(self) -> None:
        """All logs are sound, complete, and equal as far as they go."""
        end = self.cluster.server_end()
        wait_for(lambda: self.leader.log.end().end_lsn >= end, self.leader.output)
        # What is written at this moment is neither equal nor whole.
        self.leader.processes["capture"].stop()
        for each in self.followers:
            wait_for(lambda at=each: at.held == self.leader.held, each.output)  # type: ignore[misc]
            assert same_bytes(each, self.leader)
            for member in (each, self.leader):
                done = command.run("log", "verify", "--log", member.log_folder)
                assert done.returncode == 0, done.stdout + done.stderr
        self.reader.read(self.leader)
        assert self.reader.rows == self.cluster.committed()


def _following(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("scrub_hours", "timeout_s") if name in settings}


def same_bytes(one: Member, other: Member) -> bool:
    """Both hold the same segments, byte for byte up to their mark."""
    assert one.held is not None
    names = list_segments(other.store)
    sizes = [one.held[1] if each.sequence == one.held[0] else None for each in names]
    return list_segments(one.store) == names and all(
        (one.log_folder / name.file).read_bytes()[:size]
        == (other.log_folder / name.file).read_bytes()[:size]
        for name, size in zip(names, sizes, strict=True)
    )


@pytest.fixture
def build(victim_database: Database, tmp_path: Path) -> Iterator[Build]:
    made: list[Pair] = []

    def make(followers: int = 1, log: dict[str, Any] | None = None, **settings: Any) -> Pair:
        cluster = Cluster(victim_database, tmp_path)
        made.append(Pair(cluster, tmp_path, followers, log or {}, **settings))
        return made[0]

    yield make
    for each in made:
        each.end()


def test_a_slow_follower_does_not_slow_capture(build: Build, seed: int) -> None:
    """GIVEN mode async and a line that is slower than the load WHEN the follower lags too far THEN
    capture has gone on all the time, the log is not kept, and the follower starts over."""
    pair = build(
        mode="async", visible="durable", max_lag_bytes=300_000, timeout_s=15.0,
        log={"keep_hours": 0, "keep_bytes": 0},
    )  # fmt: skip
    pair.start()
    with Writers(pair.cluster.database, seed=seed):
        pair.flowing()
        wait_for(lambda: pair.followers[0].held, "the follower")
        pair.lines[0].throttle(10_000)
        wait_for(lambda: "replica.given_up" in pair.leader.output(), pair.leader.output)
        # It still gets a little and acknowledges that; it is given up once.
        held = pair.followers[0].held
        wait_for(lambda: pair.followers[0].held != held, pair.followers[0].output)
        # Capture is at the end of the WAL, and the follower is not.
        end = pair.cluster.server_end()
        wait_for(lambda: pair.leader.log.end().end_lsn >= end, "capture")
        wait_for(lambda: _lacks_deleted(pair), "retention")
        assert pair.leader.output().count("replica.given_up") == 1
        pair.lines[0].heal()
        wait_for(lambda: "replica.starting_over" in pair.followers[0].output(), "a new start")
    _check_copy(pair)


def _lacks_deleted(pair: Pair) -> bool:
    """Whether the follower lacks segments that the leader has no more."""
    held, names = pair.followers[0].held, list_segments(pair.leader.store)
    return held is not None and held < (names[0].sequence, 0)


def _check_copy(pair: Pair) -> None:
    """The copy arrives at the leader's end, and is what the leader still has."""
    end = pair.cluster.server_end()
    leader, copy = pair.leader, pair.followers[0]
    wait_for(lambda: leader.log.end().end_lsn >= end, leader.output)
    wait_for(lambda: copy.held == leader.held, copy.output)
    wait_for(lambda: same_bytes(copy, leader), "the same segments")
    held = [(each.position, each.xid, each.after) for each in leader.changes()]
    assert held
    assert held == pair.cluster.committed()[-len(held) :]


@pytest.mark.parametrize("how", ["paused", "slow"])
def test_the_other_follower_carries_on(build: Build, seed: int, how: str) -> None:
    """GIVEN mode sync, quorum 1 and two followers WHEN one is paused, or its line is slow THEN
    readers and PostgreSQL go on with the other, and in the end both have everything."""
    rng = random.Random(seed)
    pair = build(2)
    pair.start()
    with Writers(pair.cluster.database, seed=seed):
        pair.flowing()
        victim = rng.randrange(2)
        if how == "paused":
            pair.followers[victim].signal(signal.SIGSTOP)
        else:
            pair.lines[victim].throttle(3_000)
        for _ in range(3):
            pair.flowing()
        behind, ahead = (pair.followers[at].held for at in (victim, 1 - victim))
        assert ahead is not None
        assert behind is None or behind < ahead
        confirmed = pair.cluster.confirmed()
        wait_for(lambda: pair.cluster.confirmed() > confirmed, "the slot to move")
        pair.followers[victim].signal(signal.SIGCONT)
        pair.lines[victim].throttle(None)
        pair.flowing()
    pair.check()


def test_the_disk_of_a_follower_is_full(build: Build, seed: int, tmp_path: Path) -> None:
    """GIVEN mode sync WHEN the follower's disk is full, again and again THEN it says DISK_FULL on
    both sides, nothing is acknowledged without it, and with space it continues by itself."""
    rng = random.Random(seed)
    pair = build()
    copy = pair.followers[0]
    with mounted(copy.log_folder, "64m") as disk:
        pair.start()
        with Writers(pair.cluster.database, seed=seed):
            pair.flowing()
            for count in range(1, 4):
                disk.fill(leave_bytes=rng.choice([0, 8 << 10, 200 << 10]))
                wait_for(lambda at=count: said(copy) >= at, copy.output)  # type: ignore[misc]
                held = copy.held
                confirmed = pair.cluster.confirmed()
                for _ in range(rng.randrange(3)):
                    before = said(copy)
                    wait_for(lambda at=before: said(copy) > at, "another try")  # type: ignore[misc]
                assert copy.held is not None
                assert held is not None
                assert copy.held >= held
                assert copy.alive("follow")
                assert confirmed <= pair.leader.log.end().end_lsn
                disk.empty()
                pair.flowing()
        assert DiskFullError.code in pair.leader.output()
        pair.check()
        pair.end()


def said(member: Member) -> int:
    """How often a follower has reported a full disk."""
    lines = member.output().splitlines()
    return sum("replica.refused" in line and DiskFullError.code in line for line in lines)


@pytest.mark.parametrize("where", ["sealed", "last"])
def test_a_byte_of_a_follower_rots(build: Build, seed: int, where: str) -> None:
    """GIVEN a follower under load WHEN a byte of its copy changes, in a sealed segment while it
    runs, or in the last one while it is down THEN it finds that, fetches the segment again, and
    both logs are equal and sound."""
    rng = random.Random(seed)
    pair = build(scrub_hours=1e-7)
    copy = pair.followers[0]
    pair.start()
    with Writers(pair.cluster.database, seed=seed):
        pair.flowing()
        wait_for(lambda: copy.held is not None and copy.held[0] > 3, "segments")
        for count in range(1, 4):
            if where == "last":
                copy.processes["follow"].kill()
            *sealed, last = list_segments(copy.store)
            name = rng.choice(sealed) if where == "sealed" else last
            assert copy.held is not None
            size = (copy.log_folder / name.file).stat().st_size
            at = rng.randrange(size if where == "sealed" else min(size, copy.held[1]))
            print(f"{name.file}: byte {at} of {size}", flush=True)
            flip(copy.log_folder / name.file, at)
            if where == "last":
                copy.run("follow")
            wait_for(lambda at=count: repaired(copy) == at, copy.output)  # type: ignore[misc]
            pair.flowing()
    pair.check()
    assert repaired(copy) == 3


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def repaired(member: Member) -> int:
    """How many segments a follower has dropped or replaced."""
    events = ("replica.segment_repaired", "replica.copy_damaged")
    return sum(member.output().count(event) for event in events)
