"""What the fault tests of the whole path share: a running system and its victims.

A `System` is `tailrace run` with everything real: capture, the log, Spark with its JVM and workers,
the HTTP endpoints, PostgreSQL and JetStream. The oracle tells what was committed and in which
order, and the tables tell what it comes to.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import nats
import nats.errors
import nats.js.errors
import yaml
from nats.aio.client import Client
from typing_extensions import override

from tailrace import checkpoint
from tailrace.jetstream.client import close
from tailrace.log.reader import Log
from tailrace.observe.figure import document
from tailrace.position import ORIGIN, Position
from tailrace.postgres.bootstrap import log_exists
from tailrace.run import status
from tailrace.testing.process import free_port, freeze
from tests.command import Service
from tests.faults.consumer import Consumer, Tables
from tests.faults.load import KEYS, TABLES
from tests.faults.source import Source
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_postgres import Database

WORKERS = "daemon"
"""The name of the processes that Spark's workers are forked from, and of the workers."""


def sink(url: str, name: str, **more: Any) -> dict[str, Any]:
    """The settings of a sink with a stream of its own."""
    stream = {"name": name, "subjects": [f"{name}.>"], **more.pop("stream", {})}
    subject = f"{name}.{{table}}.{{operation}}"
    return {"type": "nats", "url": url, "stream": stream, "subject": subject, **more}


class Supervisor(Service):
    """A command that starts other processes: `kill` ends them as well."""

    @override
    def kill(self) -> None:
        if self.alive:
            for pid in [self.pid, *descendants(self.pid)]:
                kill(pid)
        super().kill()


class System(Source):
    """A database with tables, a settings file, and `tailrace run` over it.

    `log` are further settings of the log, `alerts` those of a watchdog; `env` are variables of the
    processes.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        pipelines: dict[str, Any],
        *,
        log: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        tables: str = TABLES,
        alerts: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(database, tables)
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        self.pipelines = pipelines
        self.process = Supervisor(
            "run", folder / "tailrace.yml", folder=folder, env=env, file="run.log"
        )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)
        self._committed: list[str] = []
        self._consumers = {
            name: Consumer(name, each)
            for name, each in pipelines.items()
            if each["sink"]["type"] == "nats"
        }
        self._prepare(log or {}, alerts)

    def _prepare(self, log: dict[str, Any], alerts: dict[str, Any] | None) -> None:
        settings = {
            "source": {"dsn": self.database.socket_dsn, "slot": self.slot},
            "log": {"path": str(self.data / "log"), "segment_bytes": "4MiB", **log},
            "data": str(self.data),
            "http": {"port": self.port},
            "pipelines": {
                name: {"shape": "plain", **pipeline} for name, pipeline in self.pipelines.items()
            },
            **({} if alerts is None else {"alerts": alerts}),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "tailrace.yml").write_text(yaml.safe_dump(settings))

    def start(self) -> None:
        """Start `tailrace run`."""
        self.process.start()

    def stop(self) -> int:
        """One SIGTERM to `tailrace run`; its exit code."""
        return self.process.stop(LONG_S)

    def kill(self) -> None:
        """End everything at once, however it is; for clearing up."""
        self._client.close()
        self.process.kill()

    def output(self) -> str:
        return self.process.output

    def pid(self, name: str) -> int | None:
        """The process the supervisor runs under a name, if it runs."""
        return running(self.data, name)

    def running_pid(self, name: str) -> int:
        """The same, once it runs."""
        return wait_for(lambda: self.pid(name), f"{name} to run") or 0

    def progress(self, name: str) -> dict[str, Any]:
        """What the status file says of a pipeline."""
        report = status.read(status.folder(self.data), "pipelines", status.PipelinesStatus)
        pipelines = (report.status.pipelines or {}) if report and report.up else {}
        return document(pipelines[name]) if name in pipelines else {}

    def state(self, name: str) -> str:
        """The state a pipeline says it is in."""
        return str(self.progress(name).get("state", ""))

    def told(self) -> dict[str, Any]:
        """The body of /status; empty while nobody answers."""
        try:
            found: dict[str, Any] = self._client.get("/status").json()
        except httpx.TransportError:
            return {}
        return found

    def health(self) -> dict[str, Any]:
        """The body of /health/checks; empty while nothing answers."""
        try:
            found: dict[str, Any] = self._client.get("/health/checks").json()
        except httpx.TransportError:
            return {}
        return found

    @property
    def log(self) -> Log:
        return Log.open(self.data / "log")

    def delivered(self, name: str) -> Position | None:
        """How far a pipeline has come, by its checkpoint."""
        return checkpoint.delivered(self.data / "checkpoints" / name)

    def empty(self, name: str, kinds: list[str], count: int) -> None:
        """Empty the youngest files of a checkpoint, as a power cut may: Spark does not fsync."""
        for kind in kinds:
            folder = self.data / "checkpoints" / name / kind
            for path in sorted(folder.glob("[0-9]*"), key=lambda path: int(path.name))[-count:]:
                path.write_bytes(b"")

    def stored(self, name: str) -> int:
        """The last sequence of a pipeline's stream, 0 without the stream."""
        answers: list[int] = []

        def answered() -> bool:
            answer = self._answered(name)
            answers.extend([] if answer is None else [answer])
            return bool(answers)

        wait_for(answered, "NATS to answer")
        return answers[0]

    def _answered(self, name: str) -> int | None:
        settings = self.pipelines[name]["sink"]
        return asyncio.run(_last_sequence(settings["url"], settings["stream"]["name"]))

    def acknowledged(self) -> None:
        """Wait until PostgreSQL is told that all that is committed by now is safe."""
        end = self.server_end()
        wait_for(lambda: self.confirmed() >= end, f"the slot to reach {end}")

    def captured(self) -> Position:
        """Wait until the log holds all that is committed by now; the position of its end."""
        end = self.server_end()
        wait_for(
            lambda: log_exists(self.data / "log") and self.log.end().end_lsn >= end,
            f"the log to reach {end}",
        )
        return self.log.end().position

    def settled(self, *names: str) -> None:
        """Wait until the log, and then these pipelines or all, have what is committed by now."""
        end = self.captured()
        for name in names or self.pipelines:
            what = f"{name} to reach {end}, it was {self.progress(name)}"
            wait_for(partial(self.reached, name, end), what)

    def reached(self, name: str, end: Position) -> bool:
        """Whether a pipeline has delivered everything up to a position."""
        return (self.delivered(name) or ORIGIN) >= end

    def flowing(self, name: str) -> None:
        """Wait until a pipeline's stream has more messages than now."""
        before: list[int] = []

        def moves() -> bool:
            found = self._answered(name)
            if found is not None:
                before.append(found)
            return found is not None and found > before[0]

        wait_for(
            moves,
            lambda: f"{name} to move: {self.progress(name)}",
        )

    def committed(self) -> list[str]:
        """The ids of all that was ever committed, in order, by the oracle."""
        self._committed.extend(position.event_id for position, _, _ in self.newly_committed())
        return self._committed

    def check(self, *names: str) -> int:
        """K1 to K7: streams hold what was committed, once, in order. How many changes that is."""
        committed = self.committed()
        tables = self._tables()
        for name in names or self.pipelines:
            self._consumers[name].check(committed, tables)
        return len(committed)

    def _tables(self) -> Tables:
        found: Tables = {}
        for table, key in KEYS.items():
            rows = self.database.query(f"SELECT row_to_json({table}) FROM {table}")
            found[table] = {tuple(row[name] for name in key): row for (row,) in rows}
        return found


def serving(system: System) -> None:
    """Wait until snapshots are served, and the documents of the tables are published."""
    events = {"requests.listening", "schemas.published"}
    wait_for(lambda: all(event in system.output() for event in events), f"{events}")


def two_ways(
    database: Database,
    folder: Path,
    url: str,
    *,
    max_open_s: float = 3,
    lanes: int = 2,
    **more: Any,
) -> System:
    """Two ways through: encoded at the source in one lane, and SQL stages in `lanes` lanes.

    A window of a second: it is reading back what was stored that keeps messages from coming twice.
    Open batches end every few seconds, so that faults hit their ends too.
    """
    short = {"duplicate_window_s": 1}
    pipelines = {
        "total": {"max_open_s": max_open_s, "sink": sink(url, "TOTAL", stream=short)},
        "lanes": {
            "lanes": lanes,
            "max_open_s": max_open_s,
            "where": "xid IS NOT NULL",
            "sink": sink(url, "LANES", stream=short),
        },
    }
    return System(database, folder, pipelines, **more)


async def _last_sequence(url: str, stream: str) -> int | None:
    """The last sequence, 0 without the stream; None without an answer."""
    client = Client()
    try:
        await client.connect(
            url.split(","), connect_timeout=20, allow_reconnect=False, max_reconnect_attempts=1
        )
    except (TimeoutError, OSError, nats.errors.Error):
        await close(client)
        return None
    try:
        return (await client.jetstream(timeout=10).stream_info(stream)).state.last_seq
    except nats.js.errors.NotFoundError:
        return 0
    except (TimeoutError, nats.js.errors.Error, nats.errors.Error):
        return None
    finally:
        await close(client)


def kill(pid: int) -> None:
    """kill -9; one that has just ended is no matter."""
    _signal(pid, signal.SIGKILL)


@contextlib.contextmanager
def paused(*pids: int) -> Iterator[None]:
    """SIGSTOP now and SIGCONT at the end of the block; one that has ended is no matter."""
    try:
        for pid in pids:
            freeze(pid)
        yield
    finally:
        for pid in pids:
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def parents() -> dict[int, int]:
    """Every process and its parent."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[int(path.parent.name)] = int(fields[1])
    return found


def descendants(root: int) -> list[int]:
    """All processes below one, nearest first."""
    known, found = parents(), [root]
    for pid in found:
        found.extend(child for child, parent in known.items() if parent == pid)
    return found[1:]


def command(pid: int) -> str:
    """The command line of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def name_of(pid: int) -> str:
    """The name of a process, of which the kernel keeps 15 bytes; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def running(data: Path, name: str) -> int | None:
    """The process that a supervisor runs under a name, if it runs."""
    run = status.read(status.folder(data), "run", status.RunStatus)
    processes = (run.status.processes or {}) if run and run.up else {}
    return processes[name].pid if name in processes else None


def victims(data: Path) -> dict[str, list[int]]:
    """The processes of a running system that may die, by what they are."""
    found: dict[str, list[int]] = collections.defaultdict(list)
    if (capture := running(data, "capture")) is not None:
        found["capture"].append(capture)
    if (driver := running(data, "pipelines")) is not None:
        found["driver"].append(driver)
        known = parents()
        for pid in descendants(driver):
            text = command(pid)
            if "/java " in text:
                found["jvm"].append(pid)
            elif name_of(pid) == "python_streaming_source_runner"[:15]:
                found["source"].append(pid)
            elif name_of(pid) == name_of(known.get(pid, 0)) == WORKERS:
                found["worker"].append(pid)
    return found
