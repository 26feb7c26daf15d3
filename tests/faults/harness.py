"""What the fault tests share: a capture process to kill, writers, an oracle and the checkers.

The oracle is PostgreSQL itself: a second slot, made at the same moment, decoded by the server's own
SQL functions. What it says was committed, in which order, is what the log must hold, row by row.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import yaml

from tailrace.change import Change, Op
from tailrace.log.changes import read_changes
from tailrace.log.reader import Log
from tailrace.position import ORIGIN, Lsn, Position
from tailrace.wire import pgoutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

ROLLED_BACK = "rolled back"
TABLE = """
CREATE TABLE ledger (
    writer int, seq bigint, tx_rows int, payload text, PRIMARY KEY (writer, seq)
)
"""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed row event, as the oracle or the log tells it."""

    position: Position
    xid: int
    op: str
    row: tuple[object, ...] | None


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"still waiting for {what} after {timeout_s} s"
        time.sleep(0.01)


class Rig:
    """A database with its ledger, a slot for capture, a slot for the oracle, and a log folder."""

    def __init__(self, database: Database, folder: Path, *, dsn: str | None = None) -> None:
        self.database = database
        self.folder = folder
        self.log_folder = folder / "log"
        self.config_file = folder / "tailrace.yml"
        self.slot = f"{database.name}_capture"
        self.oracle = f"{database.name}_oracle"
        database.execute(TABLE)
        database.execute("CREATE PUBLICATION tailrace FOR TABLE ledger")
        for slot in (self.slot, self.oracle):
            database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
        settings = {
            "source": {"dsn": dsn or database.socket_dsn, "slot": self.slot},
            "log": {
                "path": "log",
                "flush_ms": 5,
                "flush_bytes": "32KiB",
                "segment_bytes": "256KiB",
            },
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.config_file.write_text(yaml.safe_dump(settings))
        self._expected: list[Committed] = []
        self._checked = 0
        self._position = ORIGIN

    def start(
        self, *, failpoints: str = "", until: Lsn | None = None, file_bytes: int | None = None
    ) -> subprocess.Popen[bytes]:
        """A capture process. `file_bytes` caps the size of any file it writes, by the kernel."""
        command = [sys.executable, "-m", "tailrace.cli", "capture", "-c", str(self.config_file)]
        if until is not None:
            command += ["--until", str(until)]
        if file_bytes is not None:
            command = ["prlimit", f"--fsize={file_bytes}", *command]
        with (self.folder / "capture.log").open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"TAILRACE_FAILPOINTS": failpoints},
            )

    def output(self) -> str:
        return (self.folder / "capture.log").read_text()

    def server_end(self) -> Lsn:
        self.database.query("SELECT pg_logical_emit_message(true, 'test.flush', '')")
        return Lsn.parse(str(self.database.query("SELECT pg_current_wal_flush_lsn()")[0][0]))

    def catch_up(self) -> None:
        """Run capture up to the server's end, in order."""
        process = self.start(until=self.server_end())
        assert process.wait(60) == 0, self.output()[-3000:]

    def confirmed(self) -> Lsn:
        rows = self.database.query(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", self.slot
        )
        return Lsn.parse(str(rows[0][0]))

    def check_acknowledged(self) -> None:
        """K8: PostgreSQL was never told more than what is durable. The order of reading matters."""
        confirmed = self.confirmed()
        durable = Log.open(self.log_folder).end().end_lsn
        assert confirmed <= durable, f"slot at {confirmed}, log durable to {durable}"

    def check_log(self, *, complete: bool = False) -> int:
        """K1 to K5: the log continues just as the oracle says. Returns how many rows it holds."""
        self._expected.extend(self._from_oracle())
        if not any(self.log_folder.glob("*.seg")):
            assert not complete
            return 0
        log = Log.open(self.log_folder)
        end = log.end().position
        start = max(self._position, log.earliest())
        for change in read_changes(log, start, end):
            if change.op is Op.MESSAGE:
                continue
            assert self._checked < len(self._expected), f"nobody committed {change}"
            assert _from_change(change) == self._expected[self._checked]
            self._checked += 1
        self._position = end
        if complete:
            assert self._checked == len(self._expected), "committed rows are missing in the log"
        return self._checked

    def _from_oracle(self) -> Iterator[Committed]:
        rows = self.database.query(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, "
            "'proto_version', '1', 'publication_names', 'tailrace')",
            self.oracle,
        )
        lsn, xid, ordinal = Lsn(0), 0, 0
        for (data,) in rows:
            message = pgoutput.parse(data)
            if isinstance(message, pgoutput.Begin):
                lsn, xid, ordinal = message.final_lsn, message.xid, 0
            elif isinstance(message, pgoutput.Insert):
                yield Committed(Position(lsn, ordinal), xid, "insert", message.new)
                ordinal += 1


def _from_change(change: Change) -> Committed:
    return Committed(change.position, change.xid, change.op.value, change.after)


class Writers:
    """Threads that commit and roll back until stopped, through restarts of the server."""

    def __init__(self, database: Database, *, seed: int, count: int = 2, big: int = 400) -> None:
        self._database = database
        self._stop = threading.Event()
        self._big = big
        self.committed = 0
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number, random.Random(seed + number)))
            for number in range(count)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors

    def _run(self, writer: int, rng: random.Random) -> None:
        seq = 0
        while not self._stop.is_set():
            try:
                with self._database.connect() as connection:
                    seq = self._next_seq(connection, writer)
                    while not self._stop.is_set():
                        seq = self._transaction(connection, writer, seq, rng)
                        time.sleep(rng.random() * 0.004)
            except psycopg.OperationalError:
                time.sleep(0.05)
            except BaseException as error:
                self.errors.append(error)
                raise

    @staticmethod
    def _next_seq(connection: psycopg.Connection, writer: int) -> int:
        row = connection.execute(
            "SELECT coalesce(max(seq), 0) FROM ledger WHERE writer = %s", (writer,)
        ).fetchone()
        assert row is not None
        return int(row[0])

    def _transaction(
        self, connection: psycopg.Connection, writer: int, seq: int, rng: random.Random
    ) -> int:
        rows = rng.choice([1, 1, 2, 5, 20, self._big if rng.random() < 0.2 else 3])
        insert = (
            "INSERT INTO ledger SELECT %s, %s + g, %s, %s || repeat('x', %s) "
            "FROM generate_series(1, %s) g"
        )
        with connection.transaction() as transaction:
            connection.execute(insert, (writer, seq, rows, "row ", rng.randint(0, 200), rows))
            if rng.random() < 0.1:
                with connection.transaction() as savepoint:
                    many = (writer, seq + 10**6, 0, ROLLED_BACK, 0, 5)
                    connection.execute(insert, many)
                    raise psycopg.Rollback(savepoint)
            if rng.random() < 0.1:
                raise psycopg.Rollback(transaction)
            self.committed += rows
            return seq + rows
        return seq


def stop_in_order(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(30)
