"""What the benchmarks of the whole path share: pipelines as users run them, JetStream, memory."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import nats
import psutil
import yaml

from benchmarks.source import capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.source import Source, Streaming

STREAM = "CDC"


def to_nats(url: str, stream: str = STREAM, **pipeline: object) -> dict[str, Any]:
    """The settings of a pipeline into a stream of its own."""
    prefix = stream.lower()
    sink = {
        "type": "nats",
        "url": url,
        "stream": {"name": stream, "subjects": [f"{prefix}.>"]},
        "subject": f"{prefix}.{{table}}.{{operation}}",
    }
    return {"sink": sink, **pipeline}


class Pipelines:
    """`tailrace pipelines` over a log in `folder`. `source` is for those that need PostgreSQL."""

    def __init__(
        self, folder: Path, source: dict[str, str] | None = None, **pipelines: dict[str, Any]
    ) -> None:
        self.folder = folder
        settings: dict[str, Any] = {"log": {"path": "log"}, "data": "data", "pipelines": pipelines}
        if source is not None:
            settings["source"] = source
        path = folder / "pipelines.yml"
        path.write_text(yaml.safe_dump(settings))
        self._output = (folder / "pipelines.out").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli", "pipelines", "-c", str(path)],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        # A benchmark that fails must not leave pipelines behind that slow the next one down.
        atexit.register(self.process.terminate)

    def events(self, name: str) -> int:
        """How many a pipeline has delivered."""
        found: int = self._status().get(name, {}).get("events", 0)
        return found

    def _status(self) -> dict[str, Any]:
        """The pipelines in the status file; empty before there is one."""
        try:
            said = json.loads((self.folder / "data/status/pipelines.json").read_text())
        except (OSError, ValueError):
            return {}
        found: dict[str, Any] = said.get("pipelines") or {}
        return found

    def check(self) -> None:
        status = self._status()
        failed = any(each.get("state") == "failed" for each in status.values())
        if failed or self.process.poll() is not None:
            said = (self.folder / "pipelines.out").read_text()[-4000:]
            raise RuntimeError(f"a pipeline failed: {status}\n{said}")

    def wait(self, reached: Callable[[], bool], timeout_s: float = 300) -> None:
        deadline = time.monotonic() + timeout_s
        while not reached():
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"timed out; the pipelines say {self._status()}")
            time.sleep(0.1)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._output.close()


@contextlib.contextmanager
def running(
    made: Source, slot: str, folder: Path, pipeline: dict[str, Any]
) -> Iterator[tuple[Pipelines, Streaming]]:
    """The pipeline `bench`, which has delivered its first 1,000 changes, and its capture."""
    made.create_slot(slot)
    child = capture(made, slot, folder)
    try:
        child.wait_until_streaming()
        pipelines = Pipelines(folder, bench=pipeline)
        try:
            made.connection.execute("CALL fill(10, 100)")
            pipelines.wait(lambda: pipelines.events("bench") >= 1000)
            yield pipelines, child
        finally:
            pipelines.stop()
    finally:
        child.process.terminate()
        child.finish()


@contextlib.contextmanager
def paused(*roots: int) -> Iterator[None]:
    """SIGSTOP to these processes and all they started, SIGCONT at the end of the block."""
    stopped: list[psutil.Process] = []
    try:
        for root in roots:
            _suspend(psutil.Process(root), stopped)
        yield
    finally:
        for process in reversed(stopped):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def _suspend(process: psutil.Process, stopped: list[psutil.Process]) -> None:
    """A parent before its children: a stopped process starts no further ones."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
        stopped.append(process)
        for child in process.children():
            _suspend(child, stopped)


def stream_state(url: str, stream: str = STREAM) -> dict[str, Any]:
    """How many messages JetStream holds, and when the first and the last were stored."""

    async def ask() -> dict[str, Any]:
        client = await nats.connect(url)
        try:
            reply = await client.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=30)
        finally:
            await client.close()
        state: dict[str, Any] = json.loads(reply.data).get("state", {"messages": 0})
        return state

    return asyncio.run(ask())


def memory_mb(*roots: int) -> dict[str, float]:
    """Resident memory of these processes and all they started, by name and id."""
    found = {}
    for root in roots:
        for process in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
            try:
                name, rss = process.name(), process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            found[f"{name} {process.pid}"] = rss / 2**20
    return found
