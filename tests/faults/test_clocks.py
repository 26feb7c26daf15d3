"""The machine's clock jumps by hours, in both directions, under load.

All processes of `tailrace run` see the jump: supervisor, capture, the JVM, Spark's Python processes
and the HTTP endpoints. PostgreSQL and NATS keep their clock, as servers on other machines do.
Nothing is lost, doubled or stuck, retention deletes nothing that is young, and figures stay sane.
"""

from __future__ import annotations

import random
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.faults import soak
from tests.faults.clock import ShiftedClock
from tests.faults.load import Load
from tests.faults.path import System, kill, two_ways
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

HOUR_S = 3600
YOUNG_S = 60.0
"""A reader renews its pin every second, or every minute if it waits for a page of a backfill."""


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedClock:
    return ShiftedClock(tmp_path)


@pytest.fixture
def system(
    victim_database: Database, server: EmbeddedNats, tmp_path: Path, clock: ShiftedClock
) -> Iterator[System]:
    """A log in small segments, of which an hour is kept beyond what is delivered."""
    log = {"segment_bytes": "64KiB", "keep_hours": 1}
    system = two_ways(victim_database, tmp_path, server.url, log=log, env=clock.env)
    yield system
    system.kill()


def jump_under_load(system: System, clock: ShiftedClock, seed: int, hours: list[int]) -> int:
    """Jump again and again; the number of changes that were delivered."""
    system.start()
    with Load(system.database, seed=seed):
        flowing(system)
        earliest = system.log.earliest()
        for each in hours:
            print(f"the clock jumps by {each} h", flush=True)
            clock.jump(each * HOUR_S)
            flowing(system)
            restart_capture(system)
            flowing(system)
            wait_for(partial(sane, system), system.told)
        assert len(system.log.segments()) > 2
        assert system.log.earliest() == earliest, "retention deleted what is young"
    system.settled()
    assert "log.pin_stale" not in system.output()
    return system.check()


def flowing(system: System) -> None:
    for name in system.pipelines:
        system.flowing(name)


def restart_capture(system: System) -> None:
    """Retention runs at the start of every session."""
    before = system.running_pid("capture")
    kill(before)
    wait_for(lambda: system.pid("capture") not in {None, before}, "a new capture")


def sane(system: System) -> bool:
    """Whether all processes are up, as /status and /metrics say, and no figure is nonsense."""
    told = system.told()
    states = {told.get("processes", {}).get("capture", {}).get("state")}
    states |= {said.get("state") for said in told.get("pipelines", {}).values()}
    if states != {"streaming", "running"}:
        return False
    assert [path for path, value in numbers(told) if value < 0] == []
    metrics = httpx.get(f"http://127.0.0.1:{system.port}/metrics", timeout=60).text
    assert re.findall(r"^tailrace_\S+ -.*$", metrics, re.MULTILINE) == []
    return all(pin["age_s"] < YOUNG_S for pin in told["log"]["pins"])


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a document with their paths; the exit code of a killed process is negative."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name != "exit_code":
                yield from numbers(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, path)
    elif isinstance(value, int | float):
        yield path, value


@pytest.mark.timeout(600)
def test_the_clock_jumps(system: System, clock: ShiftedClock, seed: int) -> None:
    """GIVEN load WHEN the clock jumps forward and back by hours THEN everything continues."""
    rng = random.Random(seed)
    forward, back = rng.randint(2, 12), rng.randint(2, 12)
    jumps = rng.choice([[forward, -forward - back], [-back, forward + back]])
    assert jump_under_load(system, clock, seed, jumps) > 0
    assert system.stop() == 0, system.output()[-3000:]


@pytest.mark.soak
def test_the_clock_jumps_again_and_again(system: System, clock: ShiftedClock, seed: int) -> None:
    rng = random.Random(seed)
    loops = soak.rounds(every=50)
    hours = [rng.choice([-1, 1]) * rng.randint(1, 30) for _ in range(loops)]
    assert jump_under_load(system, clock, seed, hours) > 0
    assert system.stop() == 0, system.output()[-3000:]
