"""The demo's environment: PostgreSQL with a sample shop, NATS and a receiver of webhooks, a
`tailrace run` between them, and a `tailrace mirror` after them.

Everything is in temporary folders and child processes, and is removed when the environment is
closed, also after an error.
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
from tailrace.cli.demo.webhooks import Webhooks
from tailrace.errors import ProcessError
from tailrace.observe.kept import SlotFigures
from tailrace.postgres.bootstrap import initialise
from tailrace.postgres.connection import connect
from tailrace.postgres.names import TableName
from tailrace.process import die_with_parent
from tailrace.run.exit_codes import FINAL
from tailrace.run.overview import Overview
from tailrace.sinks.http.sink_type import SINK as HTTP
from tailrace.sinks.nats.sink_type import SINK as NATS
from tailrace.testing import EmbeddedNats, EmbeddedPostgres, SampleShop
from tailrace.testing.process import free_port, private_folder, remove
from tailrace.testing.shop import CLOSED, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tailrace.cli.demo.tally import Counts
    from tailrace.jetstream.settings import JetStreamSettings
    from tailrace.observe.figures import SystemFigures

DATABASE = "shop"
PIPELINE = "shop"
_FINAL = frozenset(kind.code for kind in FINAL.values())
_MIRRORED = "orders"
_POSTED = "orders"
_SHOW_COPY = "SELECT * FROM orders"
_COMPARED = "SELECT id, customer_id, status, total, note FROM {} ORDER BY id"
_MAX_RESTARTS = 2
_STOP_S = 45.0
_KILL_S = 15.0
_OUTPUT_CHARACTERS = 3000
_REMOVED_VARIABLES = ("TAILRACE_", "PG", "SPARK_", "PYSPARK_")
_KEYS = """
    SELECT relname, array_agg(attname::text ORDER BY attnum)
    FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
    JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)
    WHERE indisprimary AND relname = ANY(%s) GROUP BY relname
"""


class DemoEnvironment:
    """Started on entry, with one call of `announce` per step; stopped and removed on exit."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
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
        self._announce("starting PostgreSQL 18")
        self._postgres = owned.enter_context(EmbeddedPostgres(18))
        self._announce("starting NATS with JetStream")
        self._nats = owned.enter_context(EmbeddedNats())
        self.webhooks = owned.enter_context(Webhooks())
        self._announce(f"creating the sample shop: {', '.join(TABLES)}")
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
        self._announce("tailrace init: publication and slot")
        self._init()
        self._announce("tailrace run: capture, pipelines and the HTTP endpoints")
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
                    "sink": {"type": NATS.name, "url": self._nats.url},
                },
                "webhooks": {
                    "tables": [f"public.{_POSTED}"],
                    "shape": "bridge",
                    "encoding": "json",
                    "sink": {
                        "type": HTTP.name,
                        "url": self.webhooks.url,
                        "allow_private": True,
                    },
                },
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
        with (self.folder / f"{command}.log").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tailrace.cli", command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=_environment(os.environ, self.folder),
                # A process group of its own: Ctrl-C reaches the demo alone, which stops the
                # traffic before the pipeline.
                process_group=0,
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509
            )

    @property
    def sink(self) -> JetStreamSettings:
        """The sink of the pipeline."""
        return self.config.pipelines[PIPELINE].jetstream

    def places(self) -> Iterator[tuple[str, str]]:
        """Each server with a command that connects to it."""
        psql = "psql" if shutil.which("psql") else self._postgres.binary("psql")
        yield "PostgreSQL", f"{psql} '{self._postgres.dsn(DATABASE)}'"
        yield "NATS", f"nats --server {self._nats.url} subscribe '{self.sink.stream.subjects[0]}'"
        yield "status", f"curl {self.http}/status"
        yield "log", f"tailrace tail -c {self.file}"
        yield "mirror", f"sqlite3 {self._copy} '{_SHOW_COPY}'"

    @property
    def _copy(self) -> Path:
        return self.folder / "mirror.db"

    def start_mirror(self) -> None:
        """Start the mirror of one table; it ends with the environment."""
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
            return self._mirror.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            self._mirror.kill()
            return self._mirror.wait()

    def copied(self) -> list[tuple[object, ...]] | None:
        """The rows of the local copy; None before the mirror has created it."""
        # OperationalError: the file or its table does not exist yet.
        with contextlib.suppress(sqlite3.OperationalError):
            copy = sqlite3.connect(f"file:{self._copy}?mode=ro", uri=True)
            with contextlib.closing(copy) as connection:
                return connection.execute(_COMPARED.format(_MIRRORED)).fetchall()
        return None

    def original(self) -> list[tuple[object, ...]]:
        """The rows of the table in PostgreSQL, with the types of the copy."""
        query = _COMPARED.format(_MIRRORED).replace("total", "total::text")
        return self._source.execute(query.encode()).fetchall()

    @property
    def mirrored(self) -> str:
        """The table that is mirrored."""
        return _MIRRORED

    @property
    def posted(self) -> str:
        """The table whose changes are sent as webhooks."""
        return _POSTED

    def figures(self) -> SystemFigures:
        """The status figures of the processes."""
        return Overview(self.config, SlotFigures).read()

    def check(self, figures: SystemFigures | None = None) -> None:
        """Raise ProcessError if a process, the pipeline or the traffic has ended too early."""
        code = self._run.poll()
        if code is not None:
            raise ProcessError(f"`tailrace run` ended with exit code {code}:\n{self._output()}")
        for process in figures.processes if figures else ():
            if process.state in _FINAL:
                raise ProcessError(f"{process.name} failed, {process.state}:\n{self._output()}")
        for pipeline in figures.pipelines if figures else ():
            if pipeline.state == "failed":
                raise ProcessError(
                    f"the pipeline {pipeline.name} failed, {pipeline.code}: {pipeline.message}"
                )
        if self._traffic is not None and self._traffic.done():
            self._finish_traffic()
        if self._mirror is not None and (code := self._mirror.poll()) is not None:
            output = (self.folder / "mirror.log").read_text(errors="replace")
            raise ProcessError(f"`tailrace mirror` ended with exit code {code}:\n{output}")

    def check_start(self, figures: SystemFigures) -> None:
        """As `check`, and raise it for a process that restarts again and again."""
        self.check(figures)
        for process in figures.processes:
            if process.restarts > _MAX_RESTARTS:
                raise ProcessError(
                    f"{process.name} has restarted {process.restarts} times:\n{self._output()}"
                )

    def _output(self) -> str:
        return (self.folder / "run.log").read_text(errors="replace")[-_OUTPUT_CHARACTERS:]

    def open_shop(self) -> None:
        """Commit the shop's first transaction: its products."""
        self.shop.step()

    def start_traffic(self, *, per_second: float) -> None:
        """Start the traffic."""
        self._traffic = self._pool.submit(self.shop.run, self._closing, per_second=per_second)

    def stop_traffic(self) -> Counts:
        """Wait for the last transaction; the changes that were committed."""
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
                raise ProcessError(f"the traffic failed: {error}") from error

    def stop(self) -> int:
        """SIGTERM, as a service manager would, and the exit code."""
        self._run.terminate()
        try:
            return self._run.wait(_STOP_S)
        except BaseException as error:
            # The supervisor kills its processes after a second signal.
            self._run.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._run.wait(_KILL_S)
            self._run.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                return self._run.wait()
            raise


def _environment(own: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of the children: without variables that name the user's own servers.

    Temporary files of Java and Spark go to the demo's folder, and are removed with it.
    """
    inherited = {
        name: value for name, value in own.items() if not name.startswith(_REMOVED_VARIABLES)
    }
    java = f"{inherited.get('JDK_JAVA_OPTIONS', '')} -Djava.io.tmpdir={folder} -XX:-UsePerfData"
    return inherited | {
        "TMPDIR": str(folder),
        "SPARK_LOCAL_DIRS": str(folder),
        "JDK_JAVA_OPTIONS": java.strip(),
    }
