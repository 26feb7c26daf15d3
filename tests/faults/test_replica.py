"""Three machines with real followers: leaders fail under load, others take over, old ones rejoin.

What readers of a leader saw, in mode sync with `visible: quorum`, is never lost, doubled or out of
order, however often another machine takes over.
"""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import ConfigError, TailraceError
from tailrace.log.reader import Log
from tests.faults.harness import Writers
from tests.faults.members import Member, Reader
from tests.faults.soak import rounds
from tests.integration.replica.cluster import free_port
from tests.integration.replica.machines import Cluster
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

FENCED, GAP, SLOT_BUSY = 15, 10, 21
CI_ROUNDS = 5


@pytest.fixture
def members(database: Database, tmp_path: Path) -> Iterator[list[Member]]:
    """Three machines; the first leads, the others follow."""
    cluster = Cluster(database, tmp_path)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    made = [
        Member(cluster, tmp_path / name, own, [each for each in addresses if each != own])
        for name, own in zip("abc", addresses, strict=True)
    ]
    yield made
    for each in made:
        each.signal(signal.SIGCONT)
        each.end()


@pytest.mark.parametrize("seed", [random.randrange(1 << 32)], ids=["random"])
@pytest.mark.long
def test_takeovers(members: list[Member], seed: int) -> None:
    _take_over_again_and_again(members, seed, CI_ROUNDS)


@pytest.mark.soak
def test_takeovers_for_long(members: list[Member]) -> None:
    _take_over_again_and_again(members, random.randrange(1 << 32), rounds(20))


def _take_over_again_and_again(members: list[Member], seed: int, count: int) -> None:
    """GIVEN mode sync and `visible: quorum` WHEN leaders are killed or paused under load, and
    followers too THEN what readers see is what was committed, once and in order."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    leader, *followers = members
    cluster = leader.cluster
    reader = Reader()
    for each in followers:
        each.run("follow")
    leader.lead()
    with Writers(cluster.database, seed=seed) as writers:
        for _ in range(count):
            before = writers.committed
            wait_for(lambda at=before: writers.committed > at + 200, "load")  # type: ignore[misc]
            wait_for(lambda at=leader: reader.read(at) > 0, "a quorum")  # type: ignore[misc]
            _disturb(rng, followers)
            reader.read(leader)
            leader, followers = _fail_over(rng, leader, followers)
    _arrive(cluster, leader, reader)
    assert reader.rows == cluster.committed()
    for each in followers:
        wait_for(lambda at=each: at.held == leader.held, "the followers")  # type: ignore[misc]
        assert each.agrees_with(leader)
    leader.processes["capture"].stop()
    assert leader.check() == len(reader.rows)
    print(f"{count} takeovers, {len(reader.rows)} rows, each once and in order")


def _disturb(rng: random.Random, followers: list[Member]) -> None:
    """Something happens to a follower, or nothing."""
    victim = rng.choice(followers)
    match rng.randrange(4):
        case 0:
            victim.end()
            victim.run("follow")
        case 1:
            victim.signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0, 1.5))
            victim.signal(signal.SIGCONT)
        case 2:
            victim.end()
            # It may have written more than it has acknowledged.
            time.sleep(rng.uniform(0, 0.5))
            victim.run("follow")
        case _:
            pass


def _fail_over(
    rng: random.Random, leader: Member, followers: list[Member]
) -> tuple[Member, list[Member]]:
    """The leader dies or is paused, and another machine takes over."""
    paused = rng.random() < 0.5
    if paused:
        leader.signal(signal.SIGSTOP)
    else:
        leader.end()
    winner = _winner(rng, followers)
    winner.lead()
    if paused:
        fenced = leader.processes["capture"]
        leader.signal(signal.SIGCONT)
        assert fenced.wait() == FENCED, fenced.output
        leader.end()
    leader.run("follow")
    return winner, [each for each in (leader, *followers) if each is not winner]


def _winner(rng: random.Random, candidates: list[Member]) -> Member:
    """One of those who may win. A machine that was away may not, and then another one does."""
    for machine in rng.sample(candidates, len(candidates)):
        if rng.random() < 0.5:
            machine.processes["follow"].stop()
        machine.end()
        arguments = ("--yes", "--force")
        if rng.random() < 0.3:
            point = rng.choice(("after-copy", "after-lease", "after-terminate"))
            machine.takeover(*arguments, failpoints=f"takeover.{point}=kill")
        done = machine.takeover(*arguments)
        if done.returncode == 0:
            return machine
        assert done.returncode in {GAP, FENCED}, done.stdout + done.stderr
        machine.run("follow")
    raise AssertionError("nobody may take over, though a quorum has everything")


def _arrive(cluster: Cluster, leader: Member, reader: Reader) -> None:
    """Read to the end of what was committed."""
    end = cluster.server_end()

    def arrived() -> bool:
        reader.read(leader)
        try:
            return Log.open(leader.log_folder).end().end_lsn >= end
        except (ConfigError, TailraceError):
            return False

    wait_for(arrived, "the end of the log")
    reader.read(leader)
