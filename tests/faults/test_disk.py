"""Full disks under load: everything resumes without a person as soon as there is space.

The disk of the log is a small file system of its own. `tailrace run`, PostgreSQL and NATS are real.
In the end the streams hold what was committed, once and in order.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import DiskFullError
from tests.faults import soak
from tests.faults.disk import Disk, mounted
from tests.faults.load import Load
from tests.faults.path import System, two_ways
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

FULL = DiskFullError.code


@contextlib.contextmanager
def running(system: System, seed: int) -> Iterator[None]:
    """The system under load; in the end it has delivered everything once."""
    try:
        system.start()
        with Load(system.database, seed=seed):
            flowing(system)
            yield
            flowing(system)
            wait_for(partial(recovered, system), system.told)
        system.settled()
        assert system.check() > 0
        assert system.stop() == 0, system.output()[-3000:]
    finally:
        system.kill()


def flowing(system: System) -> None:
    for name in system.pipelines:
        system.flowing(name)


def states(system: System) -> dict[str, str]:
    """The state of capture and of each pipeline, by /status; of a pipeline with an error its code.

    The supervisor says why capture is down, and the pipelines' own status what they wait for.
    """
    told: dict[str, Any] = system.told()
    pipelines = {
        name: str(said.get("code") or said.get("state"))
        for name, said in told.get("pipelines", {}).items()
    }
    return {"capture": str(told.get("processes", {}).get("capture", {}).get("state")), **pipelines}


def recovered(system: System) -> bool:
    return states(system) == {"capture": "streaming"} | dict.fromkeys(system.pipelines, "running")


def full_and_free(system: System, disk: Disk, rng: random.Random) -> None:
    """Fill the disk of the log until capture stops, and free it after the log is delivered."""
    disk.fill(leave_bytes=rng.choice([0, 64 << 10, 512 << 10]))
    wait_for(lambda: states(system)["capture"] == FULL, "capture to report the full disk")
    disk.fill()
    end = system.log.end()
    for name in system.pipelines:
        wait_for(partial(system.reached, name, end.position), f"{name} to drain")
    assert system.confirmed() <= system.log.end().end_lsn
    time.sleep(rng.uniform(0, 2))
    disk.empty()
    flowing(system)


@pytest.mark.timeout(600)
def test_the_disk_of_the_log_is_full_for_a_while(
    victim_database: Database, server: EmbeddedNats, tmp_path: Path, seed: int
) -> None:
    """GIVEN load WHEN the log's disk is full THEN capture says DISK_FULL, the pipelines drain the
    log, and with space again everything continues by itself."""
    with mounted(tmp_path / "data" / "log", "64m") as disk:
        system = two_ways(victim_database, tmp_path, server.url)
        with running(system, seed):
            full_and_free(system, disk, random.Random(seed))
        assert FULL in {code for event, code in exits(system) if event == "process.restarting"}


def exits(system: System) -> Iterator[tuple[str, str]]:
    """What the supervisor logged about the ends of processes: event and error code."""
    for line in system.output().splitlines():
        with contextlib.suppress(ValueError):
            fields = json.loads(line)
            if "exit" in fields:
                yield fields["event"], fields["exit"].split(" ")[-1]


@pytest.mark.soak
def test_the_disk_of_the_log_is_full_again_and_again(
    victim_database: Database, server: EmbeddedNats, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with mounted(tmp_path / "data" / "log", "64m") as disk:
        system = two_ways(victim_database, tmp_path, server.url, log={"keep_bytes": "8MiB"})
        with running(system, seed):
            for _ in range(soak.rounds(every=50)):
                full_and_free(system, disk, rng)


@pytest.mark.timeout(600)
def test_a_log_that_filled_its_own_disk_is_drained(
    victim_database: Database, server: EmbeddedNats, tmp_path: Path, seed: int
) -> None:
    """GIVEN a sink that is away for so long that the log fills its disk WHEN the sink is back THEN
    the pipelines deliver, retention frees the disk, also while batches are open, and capture
    continues."""
    small = {"segment_bytes": "256KiB", "keep_bytes": "0"}
    with mounted(tmp_path / "data" / "log", "6m"):
        system = two_ways(victim_database, tmp_path, server.url, max_open_s=45, log=small)
        with running(system, seed):
            server.kill()

            def full() -> bool:
                system.database.execute(
                    "INSERT INTO entry (writer, body) "
                    "SELECT 9, repeat('x', 200) FROM generate_series(1, 500)"
                )
                return states(system)["capture"] == FULL

            wait_for(full, "the log to fill its disk")
            server.start()


@pytest.mark.timeout(600)
def test_the_disk_of_log_and_data_is_full_for_a_while(
    victim_database: Database, server: EmbeddedNats, tmp_path: Path, seed: int
) -> None:
    """GIVEN log, checkpoints, pins and status files on one disk WHEN it is full THEN capture and
    pipelines say DISK_FULL, and with space again everything continues by itself."""
    with mounted(tmp_path / "data", "64m") as disk:
        system = two_ways(victim_database, tmp_path, server.url)
        with running(system, seed):
            disk.fill()
            expected = dict.fromkeys(["capture", *system.pipelines], FULL)
            shown: dict[str, str] = {}

            def reported() -> bool:
                disk.fill()
                found = states(system)
                shown.update({name: FULL for name, state in found.items() if state == FULL})
                return shown == expected

            wait_for(reported, lambda: (states(system), system.output()[-3000:]))
            disk.empty()
