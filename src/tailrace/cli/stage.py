"""What the demo plays on: PostgreSQL, a shop in it, and a `tailrace capture` of the shop.

Everything lives in temporary folders and child processes, and is gone when the stage is left,
however that happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tailrace import config
from tailrace.capture.bootstrap import initialise
from tailrace.capture.connection import connect
from tailrace.capture.publication import TableName
from tailrace.engine.process import die_with_parent
from tailrace.errors import TailraceError
from tailrace.testing import EmbeddedPostgres, SampleShop
from tailrace.testing.shop import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

_STOP_S = 10.0
_LAG = (
    "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint "
    "FROM pg_replication_slots WHERE slot_name = %s"
)


class Stage:
    """Set up on entry, with a word about each step; taken down on exit."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._owned = contextlib.ExitStack()
        self._stop = threading.Event()
        self._traffic: Future[None] | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as owned:
            self._set_up(owned)
            self._owned = owned.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def _set_up(self, owned: contextlib.ExitStack) -> None:
        self.folder = Path(
            owned.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-demo-"))
        )
        self._say("starting PostgreSQL 18")
        try:
            server = owned.enter_context(EmbeddedPostgres(18))
        except RuntimeError as error:
            raise TailraceError(str(error)) from error
        database = server.create_database("shop")
        self.config = config.load(
            None,
            {
                "source": {"dsn": server.dsn(database, tcp=False)},
                "log": {"path": self.folder / "log"},
            },
        )
        self._say(f"making the sample shop: {', '.join(TABLES)}")
        self.shop = SampleShop(owned.enter_context(server.connect(database)))
        self.shop.create()
        self._sql = owned.enter_context(server.connect(database))
        self._say("tailrace init: publication and slot")
        self._init()
        self._say("tailrace capture: from the slot into the log")
        self._capture = self._start_capture()
        owned.callback(self.stop_capture)
        self._pool = owned.enter_context(ThreadPoolExecutor(1, "traffic"))
        owned.callback(self._stop.set)

    def _init(self) -> None:
        tables = [TableName("public", name) for name in TABLES]
        with connect(self.config.source.dsn.get_secret_value()) as connection:
            initialise(connection, self.config, tables=tables)

    def _start_capture(self) -> subprocess.Popen[bytes]:
        source = self.config.source
        command = [
            *(sys.executable, "-m", "tailrace.cli", "capture"),
            *("--dsn", source.dsn.get_secret_value(), "--log", str(self.config.log.path)),
            *("--slot", source.slot, "--publication", source.publication),
        ]
        # The caller's own settings are for the caller's own database.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TAILRACE_", "PG"))}
        with (self.folder / "capture.log").open("wb") as said:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self.folder,
                env=env,
                # Ctrl-C is for the demo, which stops the traffic before the capture.
                process_group=0,
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509
            )

    def start_traffic(self, *, per_second: float) -> None:
        """Let customers in."""
        self._traffic = self._pool.submit(self.shop.run, self._stop, per_second=per_second)

    def stop_traffic(self) -> None:
        """Wait for the last customer, and close the shop."""
        self._stop.set()
        if self._traffic is not None:
            self._traffic.result()
        self.shop.close()

    def check(self) -> None:
        """Raise what ended capture or traffic before their time."""
        if self._capture.poll() is not None:
            said = (self.folder / "capture.log").read_text(errors="replace")[-2000:]
            raise TailraceError(f"capture ended with code {self._capture.returncode}:\n{said}")
        if self._traffic is not None and self._traffic.done():
            self._traffic.result()

    def stop_capture(self) -> int:
        """SIGTERM, as a service manager would, and the exit code."""
        self._capture.terminate()
        try:
            return self._capture.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._capture.kill()
            return self._capture.wait()

    def slot_lag_bytes(self) -> int:
        """How much WAL PostgreSQL still keeps for the capture."""
        row = self._sql.execute(_LAG, (self.config.source.slot,)).fetchone()
        return 0 if row is None else int(row[0])

    def log_bytes(self) -> int:
        """Size of the log on disk."""
        return sum(file.stat().st_size for file in self.config.log.path.iterdir())
