"""How long `tailrace run` takes to deliver: after its start, and after one of its processes dies.

The recovery of a process is the longest time without a new message in JetStream after its
`kill -9`, while a change is committed every 50 ms. Each process is killed in a run of its own,
because the delay before a restart grows with every restart of the last minute. The rest is what the
processes need while nothing changes: memory, and CPU time of one core.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import nats
import psutil
import yaml

from benchmarks.delivery import STREAM, to_nats
from benchmarks.report import Report
from benchmarks.source import Source, log_folder, source
from tailrace.testing import EmbeddedNats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any, Self

    from nats.aio.client import Client

_SLOT = "startup"
_WRITE_EVERY_S = 0.05
_POLL_S = 0.01
_WATCHED_S, _PAUSE_S = 5.0, 0.5
"""When a killed process is missed at the latest, and how long without a message is a pause."""
_TIMEOUT_S = 120.0
_ROW = "INSERT INTO item (id, name) SELECT coalesce(max(id), 0) + 1, 'name' FROM item"
_WORKERS = "daemon"
"""The name of the processes that Spark's workers are forked from, and of the workers."""
_VICTIMS = {
    "worker": _WORKERS,
    "jvm": "org.apache.spark.deploy.SparkSubmit",
    "driver": "tailrace.cli pipelines",
    "capture": "tailrace.cli capture",
}
"""What the command line of a process contains."""
_STEPS = {
    "processes_s": "process.started",
    "capture_s": "capture.streaming",
    "spark_s": "pipelines.running",
}
"""The event that ends a step of the start."""


def run(quick: bool) -> Report:
    """Seconds until the first change after a start (`first_change_s`, `second_start_s`) and after
    `kill -9` of a process (`recover_*_s`); `processes_s`, `capture_s` and `spark_s` are steps of
    the first start; `rss_total_mb`, `idle_cpu_percent` with one pipeline and `idle_cpu_5_percent`
    with five.
    """
    report = Report("startup: `tailrace run` until it delivers, and what it needs while it is idle")
    warm, idle = (3, 3) if quick else (15, 20)
    with source() as made, log_folder() as folder, EmbeddedNats() as server:
        made.create_slot(_SLOT)
        _configure(made, folder, server.url, STREAM)
        with _Run(made, folder, server.url) as system:
            for name, event in _STEPS.items():
                report.figure(name, system.seconds_until(event), f"until `{event}`")
            report.figure("first_change_s", system.started_s, "new data folder")
            time.sleep(warm)
            report.figure("rss_total_mb", system.memory_mb(), "proportional, all processes")
            report.figure("idle_cpu_percent", system.cpu_percent(idle), f"of a core, {idle} s")
        starts = []
        for victim in _VICTIMS:
            with _Run(made, folder, server.url) as system:
                starts.append(system.started_s)
                report.figure(f"recover_{victim}_s", system.recovery_s(victim, warm))
        report.figure("second_start_s", statistics.median(starts), f"median of {len(starts)}")
        _configure(made, folder, server.url, STREAM, "B", "C", "D", "E")
        with _Run(made, folder, server.url) as system:
            time.sleep(warm)
            report.figure("idle_cpu_5_percent", system.cpu_percent(idle), "five pipelines")
    return report


def _configure(made: Source, folder: Path, url: str, *streams: str) -> None:
    pipelines = {each.lower(): to_nats(url, each, encoding="json") for each in streams}
    settings = {
        "source": {"dsn": made.dsn, "slot": _SLOT},
        "log": {"path": "data/log"},
        "data": "data",
        "http": {"port": 0},
        "pipelines": pipelines,
    }
    (folder / "tailrace.yml").write_text(yaml.safe_dump(settings))


class _Run:
    """`tailrace run`, from its start to its stop. A change waits for it in the slot."""

    def __init__(self, made: Source, folder: Path, url: str) -> None:
        self._made = made
        self._url = url
        self._folder = folder
        made.connection.execute(_ROW)
        self._output = (folder / "run.out").open("w")
        began, self._began_at = time.monotonic(), datetime.now(UTC)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli", "run", str(folder / "tailrace.yml")],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        atexit.register(self._process.terminate)
        self._wait_for_all()
        self.started_s = time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        self._output.close()

    def seconds_until(self, event: str) -> float:
        """Seconds from the start until an event was logged first."""
        for line in (self._folder / "run.out").read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                logged = json.loads(line)
                if isinstance(logged, dict) and logged.get("event") == event:
                    at = datetime.fromisoformat(logged["timestamp"])
                    return (at - self._began_at).total_seconds()
        raise RuntimeError(f"the event {event} was not logged")

    def recovery_s(self, victim: str, warm: float) -> float:
        """The longest pause of delivery after `kill -9` of a process."""
        with _writing(self._made):
            time.sleep(warm)
            for process in self._find(victim):
                process.kill()
            seconds = asyncio.run(self._longest_pause(_WATCHED_S))
        self._wait_for_all()
        return seconds

    async def _longest_pause(self, seconds: float) -> float:
        """The longest time between two new messages, from now until delivery has resumed."""
        began = grown = time.monotonic()
        longest, known = 0.0, 0
        client = await nats.connect(self._url)
        try:
            while (now := time.monotonic()) < began + seconds or now - grown > _PAUSE_S:
                if (found := await _messages(client)) > known:
                    known, grown, longest = found, now, max(longest, now - grown)
                await asyncio.sleep(_POLL_S)
        finally:
            await client.close()
        return longest

    def memory_mb(self) -> float:
        """The memory of all processes; a page that several share counts once."""
        return sum(each.memory_full_info().pss for each in self._processes()) / 2**20

    def cpu_percent(self, seconds: float) -> float:
        """The CPU time that all processes use, of one core."""
        before = self._cpu_s()
        time.sleep(seconds)
        after = self._cpu_s()
        return 100 * sum(used - before.get(pid, 0.0) for pid, used in after.items()) / seconds

    def _cpu_s(self) -> dict[int, float]:
        return {each.pid: sum(each.cpu_times()[:2]) for each in self._processes()}

    def _processes(self) -> list[psutil.Process]:
        root = psutil.Process(self._process.pid)
        found = [root, *root.children(recursive=True)]
        return [each for each in found if each.status() != psutil.STATUS_ZOMBIE]

    def _find(self, victim: str) -> list[psutil.Process]:
        """The largest process of a kind: a helper may have the same command line. Of workers all,
        because one may be idle, but not the daemon that forks them."""
        kind, running = _VICTIMS[victim], self._processes()
        if kind == _WORKERS:
            found = [each for each in running if each.name() == kind]
            return [each for each in found if each.ppid() in {other.pid for other in found}]
        found = [each for each in running if kind in " ".join(each.cmdline())]
        return [max(found, key=lambda each: each.memory_info().rss)]

    def _committed(self) -> int:
        """Every change is an insert."""
        return int(str(self._made.value("SELECT count(*) FROM item")))

    def _wait_for_all(self) -> None:
        asyncio.run(self._wait(self._committed()))

    async def _wait(self, messages: int) -> None:
        """Wait until the stream has so many messages."""
        deadline = time.monotonic() + _TIMEOUT_S
        client = await nats.connect(self._url)
        try:
            while (found := await _messages(client)) < messages:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = (self._folder / "run.out").read_text()[-4000:]
                    raise RuntimeError(f"{found} messages of {messages}\n{said}")
                await asyncio.sleep(_POLL_S)
        finally:
            await client.close()


async def _messages(client: Client) -> int:
    reply = await client.request(f"$JS.API.STREAM.INFO.{STREAM}", b"", timeout=30)
    state: dict[str, Any] = json.loads(reply.data).get("state", {})
    return int(state.get("messages", 0))


@contextlib.contextmanager
def _writing(made: Source) -> Iterator[None]:
    """Commit a row every 50 ms."""
    ended = threading.Event()

    def write() -> None:
        with made.server.connect(made.database) as connection:
            while not ended.wait(_WRITE_EVERY_S):
                connection.execute(_ROW)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
