"""The whole path under faults: everything committed arrives once and in order, whatever dies.

`tailrace run` as a process with all that belongs to it, a PostgreSQL and a NATS server of its own,
and connections that write all the time. In the end the streams are read as a consumer reads them.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.testing import EmbeddedNats, TcpProxy
from tests.faults import soak
from tests.faults.load import Load
from tests.faults.path import System, command, descendants, kill, sink, two_ways, victims
from tests.fix_postgres import Database
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing import EmbeddedPostgres

pytestmark = pytest.mark.long

CI_LOOPS = 4
SERVERS = ("nats", "postgres")
KINDS = (*SERVERS, "capture", "driver", "jvm", "worker", "source")


@pytest.fixture
def killed(
    victim_database: Database, server: EmbeddedNats, tmp_path: Path, seed: int
) -> Iterator[System]:
    # With one lane the batches of SQL stages are open, with two they are closed.
    system = two_ways(victim_database, tmp_path, server.url, lanes=1 + seed % 2)
    yield system
    system.kill()


class Killer:
    """Kills something at random, and brings back what nobody else would."""

    def __init__(self, system: System, server: EmbeddedNats, rng: random.Random) -> None:
        self._system = system
        self._server = server
        self._rng = rng
        self._next: list[str] = []
        self.killed: list[str] = []

    def strike(self) -> None:
        """Each kind has its turn before any comes again; what is not there is passed over."""
        found = victims(self._system.data)
        while True:
            self._next = self._next or self._rng.sample(KINDS, len(KINDS))
            kind = self._next.pop()
            if kind in SERVERS or found[kind]:
                break
        self.killed.append(kind)
        print(f"kill {kind}", flush=True)
        if kind == "nats":
            self._server.kill()
            time.sleep(self._rng.random())
            self._server.start()
        elif kind == "postgres":
            self._system.database.server.kill()
            time.sleep(self._rng.random())
            self._system.database.server.start()
        else:
            kill(self._rng.choice(found[kind]))

    def pause(self) -> None:
        """Mostly until messages flow again, and a moment more; at times the next comes sooner."""
        if self._rng.random() < 0.8:
            for name in self._system.pipelines:
                self._system.flowing(name)
        time.sleep(self._rng.uniform(0, 3))


def random_kills(system: System, server: EmbeddedNats, seed: int, loops: int) -> int:
    killer = Killer(system, server, random.Random(seed))
    system.start()
    with Load(system.database, seed=seed):
        killer.pause()
        for _ in range(loops):
            killer.strike()
            killer.pause()
    system.settled()
    changes = system.check()
    print(f"{', '.join(killer.killed)}: {changes} changes, each once, in order")
    return changes


@pytest.mark.timeout(600)
def test_killed_at_random(killed: System, server: EmbeddedNats, seed: int) -> None:
    assert random_kills(killed, server, seed, CI_LOOPS) > 0
    assert killed.stop() == 0


@pytest.mark.soak
def test_killed_at_random_for_long(killed: System, server: EmbeddedNats, seed: int) -> None:
    loops = soak.rounds(every=20)
    assert random_kills(killed, server, seed, loops) > 0
    assert killed.stop() == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A running system that several tests share. Each pipeline has a stream of its own.

    `left` and `right` go to one server, `refused` to another, which may be down, and `swallowed` to
    a third one through a proxy, which may be a black hole.
    """

    system: System
    server: EmbeddedNats
    away: EmbeddedNats
    proxy: TcpProxy

    def broken(self) -> None:
        self.away.kill()
        self.proxy.black_hole()

    def healed(self) -> None:
        self.away.kill()
        self.away.start()
        self.proxy.heal()

    def failing(self, name: str) -> None:
        """Wait until a pipeline says, in both places, that it cannot reach its sink."""

        def fails(pipelines: dict[str, Any]) -> bool:
            said = pipelines.get(name, {})
            return (said.get("state"), said.get("code")) == ("retrying", "SINK_UNREACHABLE")

        system = self.system
        wait_for(lambda: fails({name: system.progress(name)}), f"{name} to fail")
        wait_for(lambda: fails(system.told().get("pipelines", {})), f"/status of {name}")

    def keeps_delivering(self, *names: str) -> None:
        """Three times over: whatever the log ends with at a moment, they deliver it."""
        for _ in range(3):
            self.system.settled(*names)


@pytest.fixture(scope="module")
def steady(victim: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steady]:
    folder = tmp_path_factory.mktemp("steady")
    database = Database(name=victim.create_database("steady"), server=victim)
    with (
        EmbeddedNats(data=folder / "jetstream") as server,
        EmbeddedNats(data=folder / "away") as away,
        EmbeddedNats(data=folder / "behind") as behind,
        TcpProxy("127.0.0.1", behind.port) as proxy,
    ):
        through = f"nats://127.0.0.1:{proxy.port}"
        pipelines = {
            "left": {"sink": sink(server.url, "LEFT")},
            "right": {"sink": sink(server.url, "RIGHT")},
            "refused": {"sink": sink(away.url, "REFUSED")},
            "swallowed": {"sink": sink(through, "SWALLOWED", timeout_s=3)},
        }
        system = System(database, folder, pipelines)
        system.start()
        try:
            yield Steady(system=system, server=server, away=away, proxy=proxy)
        finally:
            system.kill()
    victim.drop_database(database.name)


@pytest.mark.timeout(600)
def test_a_dead_sink_holds_up_nobody_else(steady: Steady, seed: int) -> None:
    """GIVEN four pipelines WHEN two cannot reach their sinks THEN the others deliver everything."""
    system = steady.system
    steady.broken()
    with Load(system.database, seed=seed):
        steady.failing("refused")
        steady.failing("swallowed")
        stuck = system.delivered("refused"), system.delivered("swallowed")
        steady.keeps_delivering("left", "right")
        assert (system.delivered("refused"), system.delivered("swallowed")) == stuck
    steady.failing("refused")
    steady.failing("swallowed")
    system.settled("left", "right")
    system.check("left", "right")
    steady.healed()
    system.settled()
    assert system.check() > 0


def outage(steady: Steady, seed: int, down_s: int) -> None:
    """The sinks' server is away while the load goes on: the slot moves as if nothing were."""
    system, names = steady.system, ("left", "right")
    steady.healed()
    with Load(system.database, seed=seed):
        for name in system.pipelines:
            system.flowing(name)
        steady.server.kill()
        for name in names:
            steady.failing(name)
        for _ in range(down_s):
            system.acknowledged()
            # Empty: the figures are older than a few seconds.
            assert {system.state(name) for name in names} <= {"retrying", ""}
            time.sleep(1)
        for name in names:
            steady.failing(name)
        steady.server.start()
    system.settled()
    assert system.check() > 0


@pytest.mark.timeout(600)
def test_nats_is_away_and_the_slot_moves_on(steady: Steady, seed: int) -> None:
    outage(steady, seed, down_s=10)


@pytest.mark.soak
def test_nats_is_away_for_long(steady: Steady, seed: int) -> None:
    outage(steady, seed, down_s=180)


@pytest.mark.timeout(600)
def test_one_signal_stops_everything_in_order(steady: Steady, seed: int) -> None:
    """GIVEN load WHEN the run is told to stop THEN all of it ends, and a new run goes on."""
    system = steady.system
    steady.healed()
    with Load(system.database, seed=seed):
        system.flowing("left")
        started = descendants(system.process.pid)
        assert len(started) > 5
        assert system.stop() == 0, system.output()[-3000:]
        wait_for(lambda: not any(command(pid) for pid in started), "all processes to end")
        system.start()
        system.flowing("left")
    system.settled()
    assert system.check() > 0


@pytest.mark.timeout(600)
def test_a_killed_supervisor_is_started_at_once(steady: Steady, seed: int) -> None:
    """GIVEN load WHEN the supervisor dies THEN a new one waits for the old processes to end."""
    system = steady.system
    steady.healed()
    with Load(system.database, seed=seed):
        system.flowing("left")
        kill(system.process.pid)
        system.process.wait()
        system.start()
        system.flowing("left")
    system.settled()
    assert system.check() > 0


@pytest.mark.timeout(600)
def test_a_spoiled_checkpoint_ends_nobody_else(steady: Steady, seed: int) -> None:
    """GIVEN a checkpoint Spark cannot read WHEN all start THEN only its own pipeline waits."""
    system = steady.system
    steady.healed()
    spoiled = system.data / "checkpoints" / "refused" / "metadata"
    with Load(system.database, seed=seed):
        system.flowing("refused")
        assert system.stop() == 0, system.output()[-3000:]
        content = spoiled.read_bytes()
        spoiled.write_bytes(b"spoiled")
        system.start()
        wait_for(lambda: system.state("refused") == "retrying", "the pipeline to fail")
        steady.keeps_delivering("left", "right")
        assert system.state("refused") in {"retrying", ""}
        assert system.told()["processes"]["pipelines"]["restarts"] == 0
        spoiled.write_bytes(content)
    system.settled()
    assert system.check() > 0


@pytest.mark.timeout(600)
def test_a_power_cut_empties_the_youngest_checkpoint_files(steady: Steady, seed: int) -> None:
    """GIVEN checkpoints as a power cut may leave them WHEN all start THEN nothing comes twice."""
    system = steady.system
    steady.healed()
    with Load(system.database, seed=seed):
        steady.keeps_delivering(*system.pipelines)
        assert system.stop() == 0, system.output()[-3000:]
        system.empty("left", ["offsets"], 1)
        system.empty("right", ["commits"], 2)
        system.empty("refused", ["offsets", "commits"], 3)
        system.empty("swallowed", ["offsets", "commits"], 1000)
        system.start()
        for name in system.pipelines:
            system.flowing(name)
    system.settled()
    assert system.check() > 0
