"""Partitions between machines with copies, and between each of them and PostgreSQL.

Every line is whole, dead, or dead in one direction; what was kept may arrive late. Machines take
over meanwhile. In the end each row is there once and in order, only one machine has acknowledged in
each term, and nothing that was on one machine alone.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults.fleet import Fleet
from tests.faults.soak import rounds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database

CI_ROUNDS = 5
STATES = {
    "whole": (False, False),
    "dead": (True, True),
    "no requests": (True, False),
    "no answers": (False, True),
}


@pytest.mark.parametrize("count", [3])
@pytest.mark.timeout(900)
@pytest.mark.long
def test_partitions(victim_database: Database, tmp_path: Path, count: int, seed: int) -> None:
    _partition_again_and_again(victim_database, tmp_path, count, seed, CI_ROUNDS)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.soak
def test_partitions_for_long(
    victim_database: Database, tmp_path: Path, count: int, seed: int
) -> None:
    _partition_again_and_again(victim_database, tmp_path, count, seed, rounds(10))


def _partition_again_and_again(
    database: Database, folder: Path, count: int, seed: int, times: int
) -> None:
    """GIVEN mode sync and `visible: quorum` WHEN lines fail under load, and machines take over
    meanwhile THEN what readers see is what was committed, once and in order, and no term has two
    machines that acknowledge."""
    rng = random.Random(seed)
    fleet = Fleet(database, folder, count, seed=seed)
    with fleet.loaded():
        for states in itertools.islice(_combinations(fleet, rng), times):
            _partition(fleet, states, rng)
            fleet.settle()


def _combinations(fleet: Fleet, rng: random.Random) -> itertools.chain[tuple[str, ...]]:
    """Every combination of the lines that matter, in random order, again and again."""
    followers = len(fleet.members) - 1
    lines = followers + len(fleet.members)
    every = [each for each in itertools.product(STATES, repeat=lines) if set(each) != {"whole"}]
    return itertools.chain.from_iterable(rng.sample(every, len(every)) for _ in itertools.count())


def _partition(fleet: Fleet, states: tuple[str, ...], rng: random.Random) -> None:
    leader, *others = fleet.leader.folder.name, *(each.folder.name for each in fleet.followers)
    names = [
        *((leader, other) for other in others),
        *((name, "postgres") for name in (leader, *others)),
    ]
    said = {"→".join(name): state for name, state in zip(names, states, strict=True)}
    print({name: state for name, state in said.items() if state != "whole"}, flush=True)
    for name, state in zip(names, states, strict=True):
        requests, answers = STATES[state]
        fleet.lines[name].hold(requests=requests, answers=answers)
    # Some are over before anything notices, others after every limit.
    _wait(fleet, rng.choice([0.3, 2, 6]))
    candidate = takeover = None
    if rng.random() < 0.6:
        candidate = rng.choice(fleet.followers)
        takeover = fleet.take_over(candidate)
        _wait(fleet, rng.choice([0.5, 2, 4]))
    for name in rng.sample(names, len(names)):
        line = fleet.lines[name]
        # What was kept arrives late, or is lost with its connection.
        rng.choice([line.release, line.heal])()
        _wait(fleet, rng.choice([0, 0, 0.5]))
    if candidate is not None and takeover is not None:
        print(
            f"{candidate.folder.name} takes over: {fleet.finish(candidate, takeover)}", flush=True
        )


def _wait(fleet: Fleet, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        fleet.read()
        time.sleep(0.2)
