"""A pipeline into a NATS cluster of three that loses leaders, and then its quorum.

`tailrace run` as a process, with a stream of three replicas per pipeline. The pipeline `strict` has
one message on its way at a time, so its order is that of the commits whatever happens. `fast` has
the default, by which a new leader may store a message before an earlier one that the old leader has
lost: the sink then logs `nats.order_damaged`.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from tailrace.errors import SinkUnreachableError
from tailrace.jetstream.stream import stream_info
from tailrace.sinks.nats.settings import NatsSink
from tailrace.testing import EmbeddedNatsCluster
from tests.faults import soak
from tests.faults.load import Load
from tests.faults.path import System, sink
from tests.jetstream import received
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

WINDOW_S = 8
"""The quorum is lost for longer: reading back keeps messages from being stored twice."""
FINAL = {"failed", "stopped"}
"""States that a pipeline does not leave by itself."""


@pytest.fixture
def cluster() -> Iterator[EmbeddedNatsCluster]:
    with EmbeddedNatsCluster() as started:
        yield started


@pytest.fixture
def system(
    victim_database: Database, cluster: EmbeddedNatsCluster, tmp_path: Path
) -> Iterator[System]:
    def replicated(name: str, **more: Any) -> dict[str, Any]:
        stream = {"replicas": 3, "duplicate_window_s": WINDOW_S}
        return {"sink": sink(cluster.url, name, stream=stream, timeout_s=3, **more)}

    pipelines = {"strict": replicated("STRICT", max_outstanding=1), "fast": replicated("FAST")}
    made = System(victim_database, tmp_path, pipelines)
    yield made
    made.kill()


class Light(Load):
    """One slow connection: `strict` needs a round trip through the cluster for each message."""

    writers = 1

    @override
    def turns(self, *of: Any) -> Iterator[float]:
        return (4 * pause_s for pause_s in super().turns(*of))


class Cluster:
    """Kills servers of a cluster under load, and starts them again."""

    def __init__(self, cluster: EmbeddedNatsCluster, system: System, rng: random.Random) -> None:
        self._servers = cluster.servers
        self._settings = NatsSink.model_validate(system.pipelines["fast"]["sink"])
        self._system = system
        self._rng = rng

    def lose_leader(self) -> None:
        """Kill the leader of a stream; the others elect another one."""
        stream = self._rng.choice(["STRICT", "FAST"])
        leader = self._leader(stream)
        print(f"kill {leader}, the leader of {stream}", flush=True)
        self._servers[leader].kill()
        if self._rng.random() < 0.5:
            self._flowing()
        self._servers[leader].start()
        self._flowing()

    def lose_quorum(self) -> None:
        """Kill two of three: nothing is stored until they are back, and no pipeline gives up."""
        killed = self._rng.sample(sorted(self._servers), 2)
        print(f"kill {' and '.join(killed)}", flush=True)
        for name in killed:
            self._servers[name].kill()
        for pipeline in self._system.pipelines:
            self._waiting(pipeline)
        holds(self._none_failed, WINDOW_S + 5, "pipelines wait for the cluster")
        self._system.acknowledged()
        for name in killed:
            self._servers[name].start()
        self._flowing()

    def _leader(self, stream: str) -> str:
        found: list[str] = []

        def elected() -> bool:
            try:
                info = stream_info(self._settings, stream)
            except SinkUnreachableError:
                return False
            found.append(info["cluster"].get("leader", ""))
            return bool(found[-1])

        wait_for(elected, f"a leader of {stream}")
        return found[-1]

    def _flowing(self) -> None:
        for pipeline in self._system.pipelines:
            self._system.flowing(pipeline)

    def _none_failed(self) -> bool:
        return not FINAL & {self._system.state(name) for name in self._system.pipelines}

    def _waiting(self, pipeline: str) -> None:
        """Wait until a pipeline reports that it cannot reach its sink and retries."""

        def retries() -> bool:
            progress = self._system.progress(pipeline)
            assert progress.get("state") not in FINAL, progress
            return (progress.get("state"), progress.get("code")) == ("retrying", "SINK_UNREACHABLE")

        wait_for(retries, lambda: f"{pipeline}: {self._system.progress(pipeline)}")


def check(system: System) -> int:
    """Everything committed is in both streams once, and in order."""
    changes = system.check("strict")
    committed = system.committed()
    settings = system.pipelines["fast"]["sink"]
    ids = [message.id for message in received(settings["url"], settings["stream"]["name"])]
    twice = [name for name, count in Counter(ids).items() if count > 1]
    assert not twice, f"{len(twice)} twice, such as {twice[:5]}"
    assert sorted(ids) == sorted(committed)
    if "nats.order_damaged" not in system.output():
        assert ids == committed
    return changes


def run(cluster: EmbeddedNatsCluster, system: System, seed: int, loops: int) -> None:
    rng = random.Random(seed)
    faults = Cluster(cluster, system, rng)
    system.start()
    with Light(system.database, seed=seed):
        for pipeline in system.pipelines:
            system.flowing(pipeline)
        for _ in range(loops):
            faults.lose_leader()
            faults.lose_quorum()
    system.settled()
    print(f"{check(system)} changes, each once")
    assert system.stop() == 0


def test_leaders_and_the_quorum_are_lost(
    cluster: EmbeddedNatsCluster, system: System, seed: int
) -> None:
    """GIVEN pipelines with three replicas and load
    WHEN a stream's leader is killed, and then two of the three servers
    THEN the pipelines wait, continue by themselves, and nothing is lost or stored twice."""
    run(cluster, system, seed, 1)


@pytest.mark.soak
def test_leaders_and_the_quorum_are_lost_for_long(
    cluster: EmbeddedNatsCluster, system: System, seed: int
) -> None:
    run(cluster, system, seed, soak.rounds(every=100))
