"""What the fault tests of capture share: a process to kill, writers and the checkers.

What the oracle says was committed, in which order, is what the log must hold, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import yaml

from tailrace.change import Change, Op
from tailrace.log.changes import read_changes
from tailrace.log.reader import Log
from tailrace.position import ORIGIN, Lsn, Position
from tailrace.wire import pgoutput
from tests.command import Service
from tests.faults.source import Source
from tests.faults.writing import Writing
from tests.waiting import wait_for

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

ROLLED_BACK = "rolled back"
TABLE = """
CREATE TABLE ledger (
    writer int, seq bigint, tx_rows int, payload text, PRIMARY KEY (writer, seq)
);
CREATE PUBLICATION tailrace FOR TABLE ledger;
"""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed row event, as the oracle or the log tells it."""

    position: Position
    xid: int
    op: str
    row: tuple[object, ...] | None


class Rig(Source):
    """A database with its ledger, and capture as a process with a log folder."""

    def __init__(self, database: Database, folder: Path, *, dsn: str | None = None) -> None:
        super().__init__(database, TABLE)
        self.folder = folder
        self.log_folder = folder / "log"
        self.config_file = folder / "tailrace.yml"
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
        self._processes: list[Service] = []
        self._expected: list[Committed] = []
        self._checked = 0
        self._position = ORIGIN

    def start(
        self, *, failpoints: str = "", until: Lsn | None = None, file_bytes: int | None = None
    ) -> Service:
        """A capture process. `file_bytes` caps the size of any file it writes, by the kernel."""
        process = Service(
            *("capture", "-c", self.config_file),
            *(() if until is None else ("--until", until)),
            folder=self.folder,
            env={"TAILRACE_FAILPOINTS": failpoints},
            file=f"capture-{len(self._processes)}.log",
            prefix=() if file_bytes is None else ("prlimit", f"--fsize={file_bytes}"),
        )
        self._processes.append(process)
        return process.start()

    def end(self) -> None:
        """Kill what a test that failed has left running; the next ones must not notice."""
        for process in self._processes:
            process.kill()

    def output(self) -> str:
        """What all captures have printed, one after the other."""
        return "".join(process.output for process in self._processes)

    def check_stopped(self, process: Service) -> None:
        """Stop a capture. A busy machine may take longer than a capture gives itself."""
        code = process.stop()
        assert code == 0 or "capture.stop_timed_out" in process.output, process.output[-3000:]

    def catch_up(self) -> None:
        """Run capture up to the server's end, in order. After a thousand kills that is far away."""
        process = self.start(until=self.server_end())
        assert process.wait(1200) == 0, process.output[-3000:]
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        wait_for(lambda: not self.database.query(active, self.slot)[0][0], "the slot to be free")

    def check_acknowledged(self) -> None:
        """K8: capture acknowledged durable changes only. The order of reading matters."""
        confirmed = self.confirmed()
        durable = Log.open(self.log_folder).end().end_lsn
        assert confirmed <= durable, f"slot at {confirmed}, log durable to {durable}"

    def check_log(self, *, complete: bool = False) -> int:
        """K1 to K5: the log continues just as the oracle says. Returns how many rows it holds."""
        self._expected.extend(
            Committed(position, xid, "insert", message.new)
            for position, xid, message in self.newly_committed()
            if isinstance(message, pgoutput.Insert)
        )
        if not any(self.log_folder.glob("*.seg")):
            assert not complete
            return 0
        log = Log.open(self.log_folder)
        end = log.end().position
        start = max(self._position, log.earliest())
        for change in read_changes(log, start, end):
            if change.op is Op.MESSAGE:
                continue
            assert self._checked < len(self._expected), f"never committed: {change}"
            assert _from_change(change) == self._expected[self._checked]
            self._checked += 1
        self._position = end
        if complete:
            assert self._checked == len(self._expected), "committed rows are missing in the log"
        return self._checked


def _from_change(change: Change) -> Committed:
    return Committed(change.position, change.xid, change.op.value, change.after)


class Writers(Writing):
    """Connections that commit and roll back rows of the ledger until stopped."""

    writers = 2
    committed = 0

    def turns(
        self, connection: psycopg.Connection, writer: int, rng: random.Random
    ) -> Iterator[float]:
        seq = self._next_seq(connection, writer)
        while True:
            seq = self._transaction(connection, writer, seq, rng)
            yield rng.random() * 0.004

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
        rows = rng.choice([1, 1, 2, 5, 20, 400 if rng.random() < 0.2 else 3])
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
