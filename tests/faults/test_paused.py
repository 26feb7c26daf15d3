"""Processes that stop for a while and wake up, as after SIGSTOP, swapping or a frozen container.

What is paused goes on where it was: nothing is lost, nothing comes twice. What wakes up after its
successor has started writes nothing. The broker has the same tests in `test_broker`.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import AlreadyRunningError, LogFencedError
from tests.command import Service
from tests.faults import soak
from tests.faults.harness import Rig, Writers
from tests.faults.load import Load
from tests.faults.path import System, descendants, kill, paused, two_ways, victims
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

KINDS = ("capture", "driver", "jvm", "worker", "source", "nats", "walsender")
SHORT_S = (0.5, 3.0)
LONG_PAUSE_S = 10.0
SOAK_S = (5.0, 90.0)
BURST = 40_000
"""Rows of a transaction that takes a worker seconds to deliver."""


@pytest.fixture
def system(victim_database: Database, server: EmbeddedNats, tmp_path: Path) -> Iterator[System]:
    system = two_ways(victim_database, tmp_path, server.url)
    yield system
    system.kill()


class Pauser:
    """Stops a process of the path, waits, and lets it go on."""

    def __init__(self, system: System, server: EmbeddedNats, rng: random.Random) -> None:
        self._system = system
        self._server = server
        self._rng = rng

    def pause(self, kind: str, seconds: float) -> None:
        """Returns when messages flow again in all pipelines."""
        found = wait_for(lambda: self._found(kind), f"a process of the kind {kind}")
        pid = self._rng.choice(found)
        print(f"pause {kind} for {seconds:.1f} s", flush=True)
        with paused(pid):
            time.sleep(seconds)
        for name in self._system.pipelines:
            self._system.flowing(name)

    def _found(self, kind: str) -> list[int]:
        if kind == "nats":
            return [self._server.process.pid]
        if kind == "walsender":
            return self._walsenders()
        return victims(self._system.data)[kind]

    def _walsenders(self) -> list[int]:
        sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
        return [pid for (pid,) in self._system.database.query(sql, self._system.slot) if pid]


def pause_under_load(
    system: System, server: EmbeddedNats, seed: int, pauses: list[tuple[str, float]]
) -> int:
    """Pause one process after another while rows are written; the number of changes."""
    pauser = Pauser(system, server, random.Random(seed))
    system.start()
    with Load(system.database, seed=seed):
        for name in system.pipelines:
            system.flowing(name)
        for kind, seconds in pauses:
            pauser.pause(kind, seconds)
    system.settled()
    changes = system.check()
    print(f"{len(pauses)} pauses: {changes} changes, each once, in order")
    return changes


@pytest.mark.timeout(600)
def test_paused_at_random(system: System, server: EmbeddedNats, seed: int) -> None:
    """GIVEN load WHEN each process in turn stops for a moment, and one for long THEN everything
    that was committed arrives once and in order."""
    rng = random.Random(seed)
    pauses = [(kind, rng.uniform(*SHORT_S)) for kind in rng.sample(KINDS, len(KINDS))]
    pauses.append((rng.choice(KINDS), LONG_PAUSE_S))
    assert pause_under_load(system, server, seed, pauses) > 0
    assert system.stop() == 0, system.output()[-3000:]


@pytest.mark.soak
def test_paused_at_random_for_long(system: System, server: EmbeddedNats, seed: int) -> None:
    rng = random.Random(seed)
    kinds = itertools.cycle(rng.sample(KINDS, len(KINDS)))
    pauses = [(next(kinds), rng.uniform(*SOAK_S)) for _ in range(soak.rounds(every=100))]
    assert pause_under_load(system, server, seed, pauses) > 0
    assert system.stop() == 0, system.output()[-3000:]


def test_a_second_capture_is_refused_while_the_first_is_paused(rig: Rig, seed: int) -> None:
    """GIVEN a capture that does not answer WHEN another one starts on its log THEN the lock refuses
    it, and the first goes on."""
    first = rig.start()
    wait_for(lambda: "capture.streaming" in rig.output(), "capture to stream")
    with Writers(rig.database, seed=seed) as writers:
        with paused(first.pid):
            assert rig.start().wait() == LogFencedError.exit_code, rig.output()[-3000:]
        before = writers.committed
        wait_for(lambda: writers.committed > before + 100, "the writers")
    end = rig.server_end()
    wait_for(lambda: rig.confirmed() >= end, "the first capture to go on")
    rig.check_stopped(first)
    rig.catch_up()
    assert rig.check_log(complete=True) > 0
    rig.check_acknowledged()


def test_a_capture_that_wakes_after_a_takeover_writes_nothing(rig: Rig, seed: int) -> None:
    """GIVEN a paused capture whose lock is lost, as on shared storage, and a successor WHEN the
    first one wakes up THEN it ends without a write, and the log is that of the successor."""
    first = rig.start()
    wait_for(lambda: "capture.streaming" in rig.output(), "capture to stream")
    with Writers(rig.database, seed=seed) as writers:
        wait_for(lambda: writers.committed > 100, "the writers")
        with paused(first.pid):
            (rig.log_folder / "lock").unlink()
            second = rig.start()
            # PostgreSQL gives up the first connection after wal_sender_timeout.
            wait_for(lambda: "capture.streaming" in second.output, "the takeover")
            before = writers.committed
            wait_for(lambda: writers.committed > before + 100, "the writers")
        assert first.wait() == LogFencedError.exit_code, rig.output()[-3000:]
        before = writers.committed
        wait_for(lambda: writers.committed > before + 100, "the writers")
    end = rig.server_end()
    wait_for(lambda: rig.confirmed() >= end, "the second capture to go on")
    rig.check_stopped(second)
    rig.catch_up()
    assert rig.check_log(complete=True) > 0
    rig.check_acknowledged()


def test_a_capture_that_reconnects_after_a_takeover_reports_its_successor(
    rig: Rig, seed: int
) -> None:
    """GIVEN a paused capture without its lock and connection, and a successor that has moved the
    slot WHEN the first one wakes up and connects again THEN it says who appends now, not GAP."""
    first = rig.start()
    wait_for(lambda: "capture.streaming" in rig.output(), "capture to stream")
    with paused(first.pid):
        (rig.log_folder / "lock").unlink()
        rig.database.query("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        second = rig.start()
        wait_for(lambda: "capture.streaming" in second.output, "the takeover")
        with Writers(rig.database, seed=seed) as writers:
            wait_for(lambda: writers.committed > 100, "the writers")
        end = rig.server_end()
        wait_for(lambda: rig.confirmed() >= end, "the slot to move")
    assert first.wait() == LogFencedError.exit_code, rig.output()[-3000:]
    rig.check_stopped(second)


def replace_paused_pipelines(system: System) -> None:
    """Stop the Spark application with all of its processes in the middle of a large transaction,
    kill its driver, and let the others wake up after the successor has delivered."""
    before = system.stored("total")
    system.database.execute(
        "INSERT INTO entry (writer, body) SELECT 9, 'burst' FROM generate_series(1, %s)", BURST
    )
    wait_for(lambda: system.stored("total") > before + BURST // 100, "the burst")
    driver = system.running_pid("pipelines")
    with paused(driver, *descendants(driver)):
        kill(driver)
        wait_for(lambda: system.pid("pipelines") not in {None, driver}, "a new driver")
        for name in system.pipelines:
            system.flowing(name)


@pytest.mark.timeout(600)
def test_paused_pipelines_and_their_successor(system: System, seed: int) -> None:
    """GIVEN a paused Spark application WHEN a second one starts on its data folder THEN the lock
    refuses it; and WHEN the first one is killed and some of its processes wake up after the
    successor has started THEN they write nothing."""
    system.start()
    with Load(system.database, seed=seed):
        for name in system.pipelines:
            system.flowing(name)
        driver = system.running_pid("pipelines")
        arguments = ("pipelines", "-c", system.folder / "tailrace.yml")
        with (
            paused(driver, *descendants(driver)),
            Service(*arguments, folder=system.folder, file="second.log") as second,
        ):
            assert second.start().wait() == AlreadyRunningError.exit_code, second.output[-3000:]
        for name in system.pipelines:
            system.flowing(name)
        replace_paused_pipelines(system)
    system.settled()
    assert system.check() > BURST


@pytest.mark.soak
def test_paused_pipelines_and_their_successor_for_long(system: System, seed: int) -> None:
    system.start()
    with Load(system.database, seed=seed):
        for _ in range(soak.rounds(every=100)):
            replace_paused_pipelines(system)
    system.settled()
    assert system.check() > BURST
