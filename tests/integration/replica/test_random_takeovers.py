"""Random takeovers under load: leaders that are killed or paused, candidates that are killed."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import pytest

from tests.chance import seeds
from tests.faults.harness import Writers
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.command import Service
    from tests.integration.replica.machines import Cluster, Machine

FENCED = 15
ROUNDS = 4
FAILPOINTS = ("takeover.after-copy", "takeover.after-lease", "takeover.after-terminate")


@pytest.mark.parametrize("seed", seeds(50, short=1, long=5))
def test_the_last_log_holds_everything(cluster: Cluster, seed: int) -> None:
    """GIVEN three machines and writers WHEN leaders fail and others take over, again and again THEN
    every log holds the beginning of what was committed, and the last one all of it."""
    rng = random.Random(seed)
    machines = [cluster.machine(name) for name in "abc"]
    leader = machines[0]
    with Writers(cluster.database, seed=seed) as writers:
        process = leader.streaming()
        for _ in range(ROUNDS):
            before = writers.committed
            wait_for(lambda at=before: writers.committed > at + 300, "load")  # type: ignore[misc]
            leader, process = fail_over(cluster, machines, leader, process, rng)
        process.stop()
    leader.catch_up()
    assert cluster.slots() == [cluster.slot_of(leader.term)]
    count = leader.check()
    for machine in machines:
        if any(machine.log_folder.glob("*.seg")):
            assert machine.check(complete=False) <= count
            assert machine.agrees_with(leader)


def fail_over(
    cluster: Cluster, machines: list[Machine], leader: Machine, process: Service, rng: random.Random
) -> tuple[Machine, Service]:
    """Stop the leader somehow, and have a machine with its log take over; the new leader."""
    paused = rng.random() < 0.5
    process.signal(signal.SIGSTOP if paused else signal.SIGKILL)
    if not paused:
        process.wait()
    candidates = [machine for machine in machines if machine is not leader]
    for machine in candidates:
        machine.copy_log(leader)
    rng.shuffle(candidates)
    for machine in candidates * 2:
        if rng.random() < 0.5:
            point = rng.choice(FAILPOINTS)
            done = machine.takeover("--yes", "--force", failpoints=f"{point}=kill")
            assert done.returncode == -signal.SIGKILL, done.stderr
    winner = rng.choice(candidates)
    winner.take_over("--force")
    new = winner.streaming()
    if paused:
        process.signal(signal.SIGCONT)
        assert process.wait() == FENCED, process.output
    else:
        assert leader.capture().wait() == FENCED
    for machine in candidates:
        if machine is not winner:
            assert machine.capture().wait() == FENCED
    return winner, new
