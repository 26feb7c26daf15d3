"""kill -9 at every named point and at random moments; then everything must be there, once."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults import soak
from tests.faults.harness import Rig, Writers
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.fix_postgres import Database

POINTS = [
    "capture.received",  # C5, C9: read from the socket, nothing written
    "capture.before-append",
    "log.before-write",
    "log.torn-write",  # C6: half an entry
    "log.before-sync",
    "log.after-sync",
    "log.before-index",
    "log.before-mark",
    "log.after-mark",
    "store.create",  # C7: a new segment, at each step of its creation
    "store.before-rename",
    "store.after-rename",
    "capture.before-status",  # C8
    "capture.after-status",
]
SHORT = {"log.torn-write", "log.after-sync", "capture.before-status"}
"""Before, while and after an entry becomes durable; the others run in `make test-long`."""
CI_LOOPS = 30


@pytest.mark.parametrize(
    "point",
    [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in POINTS],
)
def test_killed_at_a_named_point(point: str, rig: Rig, seed: int) -> None:
    rng = random.Random(seed)
    with Writers(rig.database, seed=seed) as writers:
        for at in (1, rng.randint(2, 12)):
            process = rig.start(failpoints=f"{point}=kill@{at}")
            assert process.wait() == -signal.SIGKILL, f"{point}@{at} was never passed"
            if any(rig.log_folder.glob("*.seg")):
                rig.check_log()
                rig.check_acknowledged()
        wait_for(lambda: writers.committed > 200, "the writers")
    rig.catch_up()
    assert rig.check_log(complete=True) >= 200
    rig.check_acknowledged()


def test_killed_in_the_middle_of_a_huge_transaction(rig: Rig, seed: int) -> None:
    """C9: 5,000 of 20,000 rows are on disk as fragments; none of them may be seen."""
    rig.database.execute(
        "INSERT INTO ledger SELECT 9, g, 20000, repeat('y', 100) FROM generate_series(1, 20000) g"
    )
    process = rig.start(failpoints="log.after-sync=kill@25")
    assert process.wait() == -signal.SIGKILL
    assert sum(file.stat().st_size for file in rig.log_folder.glob("*.seg")) > 500_000
    assert rig.check_log() == 0
    rig.check_acknowledged()
    rig.catch_up()
    assert rig.check_log(complete=True) == 20_000


def random_kills(rig: Rig, database: Database, seed: int, loops: int) -> int:
    """Kill again and again under load, checking the log after every death."""
    rng = random.Random(seed)
    with Writers(database, seed=seed) as writers:
        for _ in range(loops):
            point = rng.choice([*POINTS, *[""] * len(POINTS)])
            process = rig.start(failpoints=point and f"{point}=kill@{rng.randint(1, 60)}")
            deadline = time.monotonic() + rng.uniform(0.3, 1.2)
            while process.alive and time.monotonic() < deadline:
                if any(rig.log_folder.glob("*.seg")):
                    rig.check_acknowledged()
                time.sleep(0.02)
            assert process.exit_code in (None, -signal.SIGKILL), rig.output()[-3000:]
            process.kill()
            rig.check_log()
        wait_for(lambda: writers.committed > 0, "the writers")
    rig.catch_up()
    rig.check_acknowledged()
    rows = rig.check_log(complete=True)
    assert rows > loops
    return rows


@pytest.mark.long
def test_killed_at_random_moments(rig: Rig, seed: int) -> None:
    random_kills(rig, rig.database, seed, CI_LOOPS)


@pytest.mark.soak
def test_killed_at_random_moments_for_long(rig: Rig, seed: int) -> None:
    loops = soak.rounds()
    rows = random_kills(rig, rig.database, seed, loops)
    print(f"{loops} kills, {rows} rows: each once, in commit order")
