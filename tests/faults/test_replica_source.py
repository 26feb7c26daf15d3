"""PostgreSQL crashes, restarts and stands still while machines follow and take over."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.faults.fleet import Fleet
from tests.faults.path import descendants, paused
from tests.faults.soak import rounds
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.testing import EmbeddedPostgres
    from tests.fix_postgres import Database

CI_ROUNDS = 5
FAILURES = ("stopped", "backend killed", "paused")


@pytest.mark.parametrize("count", [3])
@pytest.mark.timeout(900)
@pytest.mark.long
def test_postgres_fails(victim_database: Database, tmp_path: Path, count: int, seed: int) -> None:
    _fail_again_and_again(victim_database, tmp_path, count, seed, CI_ROUNDS)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.soak
def test_postgres_fails_for_long(
    victim_database: Database, tmp_path: Path, count: int, seed: int
) -> None:
    _fail_again_and_again(victim_database, tmp_path, count, seed, rounds(10))


def _fail_again_and_again(
    database: Database, folder: Path, count: int, seed: int, times: int
) -> None:
    """GIVEN mode sync and `visible: quorum` WHEN PostgreSQL crashes or stands still under load, and
    in the middle of takeovers THEN what readers see is what was committed, once and in order."""
    rng = random.Random(seed)
    fleet = Fleet(database, folder, count, seed=seed)
    failures = [*FAILURES] * times
    with fleet.loaded():
        for failure in rng.sample(failures, len(failures))[:times]:
            candidate = takeover = None
            if rng.random() < 0.7:
                candidate = rng.choice(fleet.followers)
                takeover = fleet.take_over(candidate)
                time.sleep(rng.uniform(0, 1.5))
            print(failure, flush=True)
            _fail(database, failure, rng)
            if candidate is not None and takeover is not None:
                won = fleet.finish(candidate, takeover)
                print(f"{candidate.folder.name} takes over: {won}", flush=True)
            fleet.settle()


def _fail(database: Database, failure: str, rng: random.Random) -> None:
    server = database.server
    match failure:
        case "stopped":
            server.kill()
            time.sleep(rng.uniform(0, 2))
            server.start()
        case "backend killed":
            _kill_backend(database)
            wait_for(lambda: _serves(database), "PostgreSQL to recover")
        case _:
            _pause(server, rng.choice([0.5, 2, 7]))


def _kill_backend(database: Database) -> None:
    """SIGKILL of a walsender, or else of a client's backend: PostgreSQL ends all and recovers."""
    [(pid,)] = database.query(
        "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND backend_type IN ('walsender', 'client backend') "
        "ORDER BY backend_type = 'walsender' DESC LIMIT 1"
    )
    os.kill(pid, signal.SIGKILL)


def _pause(server: EmbeddedPostgres, seconds: float) -> None:
    root = server.process.pid
    with paused(root, *descendants(root)):
        time.sleep(seconds)


def _serves(database: Database) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        return bool(database.query("SELECT 1"))
    return False
