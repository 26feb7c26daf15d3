"""The console: how long the overview takes with many viewers, and what a viewer costs delivery.

The overview: `tailrace serve` over 100 pipelines, a log and a publication of 1,000 tables, and a
day of trends; the status files are written every second, as by running processes. Ten viewers have
the page open, which refreshes it, and load it again every second.

The viewer: the backlog of `deliver`, with `tailrace serve` beside it. One run of each pair has a
viewer: the overview and the page of the pipeline are open and loaded again every second.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
import time
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import yaml

from benchmarks.deliver import deliver_backlog, fill
from benchmarks.report import Report
from benchmarks.source import capture, log_folder, source
from tailrace.console.trends import Trends
from tailrace.observe.figures import (
    CaptureFigures,
    PipelineFigures,
    ProcessFigures,
    SystemFigures,
)
from tailrace.run import status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.source import Source

_PIPELINES, _TABLES, _VIEWERS = 100, 1000, 10
_SECONDS, _WARM_S = 30, 5
_REPETITIONS = 3
_LOAD_EVERY_S = 1.0
_HOST = "127.0.0.1"
_START_S = 60
_MANY_TABLES = """
DO $$ BEGIN
    FOR i IN 1 .. %s LOOP
        EXECUTE format('CREATE TABLE t_%%s (id bigint PRIMARY KEY, name text)', i);
        EXECUTE format('ALTER PUBLICATION tailrace ADD TABLE t_%%s', i);
    END LOOP;
END $$
"""
_A_ROW_EACH = """
DO $$ BEGIN
    FOR i IN 1 .. %s LOOP EXECUTE format('INSERT INTO t_%%s VALUES (1, ''x'')', i); END LOOP;
END $$
"""


def run(quick: bool) -> Report:
    """`overview_p50_ms`, `overview_p95_ms`; `viewer_ratio`."""
    report = Report("console: the overview with many viewers, and delivery beside a viewer")
    _overview(report, quick)
    _viewer(report, quick)
    return report


def _overview(report: Report, quick: bool) -> None:
    pipelines, tables = (10, 50) if quick else (_PIPELINES, _TABLES)
    names = [f"pipeline_{number}" for number in range(pipelines)]
    with source() as made, log_folder() as folder:
        _many_tables(made, folder, tables)
        _trends(folder / "data", names)
        with _Statuses(folder / "data", names), _serve(made, folder, names) as port:
            seconds = 3 if quick else _SECONDS
            with contextlib.ExitStack() as stack:
                viewers = [stack.enter_context(_Viewer(port, ["/"])) for _ in range(_VIEWERS)]
                time.sleep(_WARM_S)
                for viewer in viewers:
                    viewer.loads_ms.clear()
                time.sleep(seconds)
    loads = [each for viewer in viewers for each in viewer.loads_ms]
    p50, p95 = np.percentile(loads, (50, 95))
    remark = f"{pipelines} pipelines, {tables:,} tables, {_VIEWERS} viewers, {len(loads)} loads"
    report.figure("overview_p50_ms", float(p50), remark)
    report.figure("overview_p95_ms", float(p95))
    refreshed = sum(viewer.refreshed for viewer in viewers)
    report.add("refreshed meanwhile", f"{refreshed:,}", "parts of open pages")


def _viewer(report: Report, quick: bool) -> None:
    form = {"shape": "bridge", "encoding": "msgpack"}
    ratios, rates = [], []
    with source() as made, log_folder() as folder:
        _, rows = fill(made, folder, quick=quick)

        def measured(pages: list[str]) -> float:
            @contextlib.contextmanager
            def beside(place: Path) -> Iterator[None]:
                with _serve(made, place, ["bench"]) as port, _Viewer(port, pages):
                    yield

            return deliver_backlog(folder, form, rows, beside)

        for repetition in range(1 if quick else _REPETITIONS):
            pairs = [(0, []), (1, ["/", "/console/pipelines/bench"])]
            found = {
                viewers: measured(pages) for viewers, pages in pairs[:: -1 if repetition % 2 else 1]
            }
            rates.append(found[1])
            ratios.append(found[1] / found[0])
    report.add("backlog with a viewer", f"{median(rates):,.0f} events/s")
    remark = "÷ without: " + ", ".join(f"{each:.3f}" for each in ratios)
    report.figure("viewer_ratio", median(ratios), remark)


def _many_tables(made: Source, folder: Path, tables: int) -> None:
    """Tables in the publication, and a log with a row of each."""
    made.connection.execute((_MANY_TABLES % tables).encode())
    made.create_slot("console")
    made.connection.execute((_A_ROW_EACH % tables).encode())
    capture(made, "console", folder, made.end()).finish()


def _trends(data: Path, names: list[str]) -> None:
    """The samples of a day of a running system."""
    now = [time.time() - 86_400.0]
    kept = Trends(data, lambda: _system(names, now[0]), clock=lambda: now[0])
    data.mkdir(exist_ok=True)
    while now[0] < time.time() - 10:
        kept.sample()
        now[0] += 300.0 if now[0] < time.time() - 3900 else 10.0
    kept.save()


def _system(names: list[str], now: float) -> SystemFigures:
    pipelines = _pipelines(names, now)
    return SystemFigures(
        capture=CaptureFigures(changes=int(now)),
        pipelines=tuple(pipelines.values()),
    )


def _pipelines(names: list[str], now: float) -> dict[str, PipelineFigures]:
    return {
        name: PipelineFigures(
            name=name, state="running", events=int(now) + number, bytes=int(now), batches=9,
            lag_s=0.1, lag_bytes=number, latency_ms_p50=40.0 + number, latency_ms_p99=90.0,
        )
        for number, name in enumerate(names)
    }  # fmt: skip


class _Statuses:
    """Writes the status files every second, as the processes of a running system do."""

    def __init__(self, data: Path, names: list[str]) -> None:
        self._where = status.folder(data)
        self._names = names
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        up = {name: ProcessFigures(state="running", up=True) for name in ("capture", "pipelines")}
        while True:
            now = time.time()
            capture_figures = CaptureFigures(state="streaming", changes=int(now), connected=True)
            status.write(self._where, "capture", capture_figures)
            report = status.PipelinesStatus(state="running", pipelines=_pipelines(self._names, now))
            status.write(self._where, "pipelines", report)
            status.write(self._where, "run", status.RunStatus(started_at=now, processes=up))
            if self._stop.wait(status.WRITE_EVERY_S):
                return

    def __enter__(self) -> _Statuses:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def _serve(made: Source, folder: Path, names: list[str]) -> Iterator[int]:
    """`tailrace serve`; its port."""
    with socket.create_server((_HOST, 0)) as probe:
        port = int(probe.getsockname()[1])
    # Only shown. A sink whose server had to be reached would cost reconnects.
    sink = {"type": "http", "url": "http://127.0.0.1:1/"}
    settings: dict[str, Any] = {
        "source": {"dsn": made.dsn, "publication": "tailrace"},
        "log": {"path": "log"},
        "data": "data",
        "http": {"host": _HOST, "port": port},
        "pipelines": {name: {"sink": sink} for name in names},
    }
    path = folder / "serve.yml"
    path.write_text(yaml.safe_dump(settings))
    with (folder / "serve.out").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli", "serve", "-c", str(path)],
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            _wait(port, process, folder / "serve.out")
            yield port
        finally:
            process.terminate()
            process.wait(30)


def _wait(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        with contextlib.suppress(OSError):
            _load(port, "/health")
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"serve does not answer:\n{output.read_text()[-4000:]}")
        time.sleep(0.1)


def _load(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection(_HOST, port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"accept": "text/html"})
        answer = connection.getresponse()
        content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    return content


class _Viewer:
    """A browser that loads its open pages every second. Without pages: no browser."""

    def __init__(self, port: int, pages: list[str]) -> None:
        self._port = port
        self._pages = pages
        self._stop = threading.Event()
        self._streams: list[http.client.HTTPConnection] = []
        self._threads = [threading.Thread(target=self._run)] if pages else []
        self.loads_ms: list[float] = []
        self.refreshed = 0

    def _run(self) -> None:
        while not self._stop.wait(_LOAD_EVERY_S):
            for page in self._pages:
                began = time.perf_counter()
                _load(self._port, page)
                self.loads_ms.append((time.perf_counter() - began) * 1000)

    def _follow(self, connection: http.client.HTTPConnection, page: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            connection.request("GET", f"/console/live?page={quote(page, safe='')}")
            answer = connection.getresponse()
            while line := answer.readline():
                self.refreshed += line.startswith(b"event: page")

    def __enter__(self) -> _Viewer:
        for page in self._pages:
            connection = http.client.HTTPConnection(_HOST, self._port, timeout=60)
            self._streams.append(connection)
            self._threads.append(threading.Thread(target=self._follow, args=(connection, page)))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for connection in self._streams:
            with contextlib.suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
