"""What the demo plays on: PostgreSQL with a shop in it, NATS, a `tailrace run` between them, and a
`tailrace mirror` at the far end.

Everything lives in temporary folders and child processes, and is gone when the stage is left,
however that happens.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import psycopg
import yaml

from tailrace import config
from tailrace.change import Op
from tailrace.cli.demo.tally import Tally
from tailrace.errors import ProcessError
from tailrace.observe.metrics import SlotFigures
from tailrace.postgres.bootstrap import initialise
from tailrace.postgres.connection import connect
from tailrace.postgres.publication import TableName
from tailrace.process import die_with_parent
from tailrace.run.overview import Overview
from tailrace.run.supervisor import FINAL
from tailrace.testing import EmbeddedNats, EmbeddedPostgres, SampleShop
from tailrace.testing.process import free_port, private_folder, remove
from tailrace.testing.shop import CLOSED, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tailrace.cli.demo.tally import Counts
    from tailrace.config import NatsSink
    from tailrace.observe.metrics import Figures

DATABASE = "shop"
PIPELINE = "shop"
_FINAL = frozenset(kind.code for kind in FINAL.values())
_MIRRORED = "orders"
_LOOK = "SELECT * FROM orders"
_SAME = "SELECT id, customer_id, status, total, note FROM {} ORDER BY id"
_RESTARTS = 2
_STOP_S = 45.0
_HURRY_S = 15.0
_OUTPUT_CHARACTERS = 3000
_FOREIGN = ("TAILRACE_", "PG", "SPARK_", "PYSPARK_")
_KEYS = """
    SELECT relname, array_agg(attname::text ORDER BY attnum)
    FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
    JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)
    WHERE indisprimary AND relname = ANY(%s) GROUP BY relname
"""


class DemoEnvironment:
    """Set up on entry, with a word about each step; taken down on exit."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._owned = contextlib.ExitStack()
        self._closing = threading.Event()
        self._traffic: Future[None] | None = None
        self._mirror: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as owned:
            try:
                self._set_up(owned)
            except (RuntimeError, psycopg.Error) as error:
                raise ProcessError(str(error)) from error
            self._owned = owned.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def _set_up(self, owned: contextlib.ExitStack) -> None:
        self.folder = private_folder("trdemo-", None)
        owned.callback(remove, self.folder)
        self._say("starting PostgreSQL 18")
        self._postgres = owned.enter_context(EmbeddedPostgres(18))
        self._say("starting NATS with JetStream")
        self._nats = owned.enter_context(EmbeddedNats())
        self._say(f"making the sample shop: {', '.join(TABLES)}")
        with self._postgres.connect() as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        counter = owned.enter_context(self._postgres.connect(DATABASE))
        self.shop = SampleShop(counter)
        self.shop.create()
        self._shop_pid = counter.info.backend_pid
        connection = owned.enter_context(self._postgres.connect(DATABASE))
        self.tally = Tally(connection)
        self.tally.create(TABLES)
        self.keys = {name: tuple(keys) for name, keys in connection.execute(_KEYS, [list(TABLES)])}
        self._source = connection
        self.config = self._write_config()
        self._say("tailrace init: publication and slot")
        self._init()
        self._say("tailrace run: capture, pipelines and the HTTP endpoints")
        self._run = self._start()
        owned.callback(self.stop)
        self._pool = owned.enter_context(ThreadPoolExecutor(1, "traffic"))
        owned.callback(self._closing.set)

    def _write_config(self) -> config.Config:
        self.file = self.folder / "tailrace.yml"
        self.http = f"http://127.0.0.1:{free_port()}"
        settings = {
            "source": {"dsn": self._postgres.dsn(DATABASE, tcp=False)},
            "log": {"path": "data/log"},
            "data": "data",
            "http": {"port": int(self.http.rpartition(":")[2])},
            "pipelines": {
                PIPELINE: {
                    "messages": ["shop.*"],
                    "shape": "bridge",
                    "encoding": "json",
                    "snapshots": {},
                    "sink": {"type": "nats", "url": self._nats.url},
                }
            },
        }
        self.file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        return config.load(self.file)

    def _init(self) -> None:
        tables = [TableName("public", name) for name in TABLES]
        with connect(self.config.source.dsn.get_secret_value()) as connection:
            initialise(connection, self.config, tables=tables)

    def _start(self) -> subprocess.Popen[bytes]:
        return self._child("run", str(self.file))

    def _child(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command}.log").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "tailrace.cli", command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self.folder,
                env=_environment(os.environ, self.folder),
                # Ctrl-C is for the demo, which stops the traffic before the pipeline.
                process_group=0,
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509
            )

    @property
    def sink(self) -> NatsSink:
        """Where the messages go."""
        return self.config.pipelines[PIPELINE].nats

    def places(self) -> Iterator[tuple[str, str]]:
        """What runs where, as commands that show it."""
        psql = "psql" if shutil.which("psql") else self._postgres.binary("psql")
        yield "PostgreSQL", f"{psql} '{self._postgres.dsn(DATABASE)}'"
        yield "NATS", f"nats --server {self._nats.url} subscribe '{self.sink.stream.subjects[0]}'"
        yield "status", f"curl {self.http}/status"
        yield "log", f"tailrace tail -c {self.file}"
        yield "mirror", f"sqlite3 {self._copy} '{_LOOK}'"

    @property
    def _copy(self) -> Path:
        return self.folder / "mirror.db"

    def start_mirror(self) -> None:
        """Begin a local copy of a table, for as long as the stage stands."""
        self._mirror = self._child(
            "mirror",
            *("--from", self._nats.url, "--table", _MIRRORED, "--to", f"sqlite:///{self._copy}"),
        )
        self._owned.callback(self.stop_mirror)

    def stop_mirror(self) -> int:
        """SIGTERM, and the exit code. May be called twice."""
        if self._mirror is None:
            return 0
        self._mirror.terminate()
        try:
            return self._mirror.wait(_HURRY_S)
        except subprocess.TimeoutExpired:
            self._mirror.kill()
            return self._mirror.wait()

    def copied(self) -> list[tuple[object, ...]] | None:
        """The rows of the local copy; None before there is one."""
        # Not there yet: neither the file nor, in it, the table.
        with contextlib.suppress(sqlite3.OperationalError):
            found = sqlite3.connect(f"file:{self._copy}?mode=ro", uri=True)
            with contextlib.closing(found) as connection:
                return connection.execute(_SAME.format(_MIRRORED)).fetchall()
        return None

    def original(self) -> list[tuple[object, ...]]:
        """The rows of the table itself, as a copy has them."""
        query = _SAME.format(_MIRRORED).replace("total", "total::text")
        return self._source.execute(query.encode()).fetchall()

    @property
    def mirrored(self) -> str:
        """The table that there is a local copy of."""
        return _MIRRORED

    def look(self) -> Figures:
        """What the processes say of themselves."""
        return Overview(self.config, SlotFigures).look()

    def check(self, figures: Figures | None = None) -> None:
        """Raise what ended the pipeline or the traffic before their time."""
        code = self._run.poll()
        if code is not None:
            raise ProcessError(f"`tailrace run` ended with code {code}:\n{self._output()}")
        for process in figures.processes if figures else ():
            if process.state in _FINAL:
                raise ProcessError(f"{process.name} stopped, {process.state}:\n{self._output()}")
        for pipeline in figures.pipelines if figures else ():
            if pipeline.state == "failed":
                raise ProcessError(f"the pipeline failed, {pipeline.code}: {pipeline.message}")
        if self._traffic is not None and self._traffic.done():
            self._finish_traffic()
        if self._mirror is not None and (code := self._mirror.poll()) is not None:
            said = (self.folder / "mirror.log").read_text(errors="replace")
            raise ProcessError(f"`tailrace mirror` ended with code {code}:\n{said}")

    def check_start(self, figures: Figures) -> None:
        """The same, and a process that comes up only to go down again."""
        self.check(figures)
        for process in figures.processes:
            if process.restarts > _RESTARTS:
                raise ProcessError(f"{process.name} does not stay up:\n{self._output()}")

    def _output(self) -> str:
        return (self.folder / "run.log").read_text(errors="replace")[-_OUTPUT_CHARACTERS:]

    def open_shop(self) -> None:
        """The shop's first transaction: its goods."""
        self.shop.step()

    def start_traffic(self, *, per_second: float) -> None:
        """Let customers in."""
        self._traffic = self._pool.submit(self.shop.run, self._closing, per_second=per_second)

    def stop_traffic(self) -> Counts:
        """Wait for the last customer and close the shop; what the messages have to add up to."""
        self._closing.set()
        self.tally.end_idle(but=self._shop_pid)
        self._finish_traffic()
        committed = self.tally.close(CLOSED)
        committed["shop.note", Op.MESSAGE] = self.shop.committed[Op.MESSAGE]
        committed[CLOSED, Op.MESSAGE] = 1
        return committed

    def _finish_traffic(self) -> None:
        if self._traffic is not None:
            try:
                self._traffic.result()
            except psycopg.Error as error:
                raise ProcessError(f"the traffic ended: {error}") from error

    def stop(self) -> int:
        """SIGTERM, as a service manager would, and the exit code."""
        self._run.terminate()
        try:
            return self._run.wait(_STOP_S)
        except BaseException as error:
            # A second signal tells the supervisor to kill what it has.
            self._run.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._run.wait(_HURRY_S)
            self._run.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                return self._run.wait()
            raise


def _environment(ours: Mapping[str, str], folder: Path) -> dict[str, str]:
    """For the children: the caller's own settings are for the caller's own servers.

    Whatever Java and Spark put aside goes into the demo's folder, and with it.
    """
    kept = {name: value for name, value in ours.items() if not name.startswith(_FOREIGN)}
    java = f"{kept.get('JDK_JAVA_OPTIONS', '')} -Djava.io.tmpdir={folder} -XX:-UsePerfData"
    return kept | {
        "TMPDIR": str(folder),
        "SPARK_LOCAL_DIRS": str(folder),
        "JDK_JAVA_OPTIONS": java.strip(),
    }
