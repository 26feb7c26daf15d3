"""Machines with copies of one log, a source with an oracle, and the check that both logs agree.

The folder of the log is copied with the standard library, in place of a follower.
"""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import yaml

from tailrace import config
from tailrace.change import Change, Op
from tailrace.log import lease
from tailrace.log.changes import read_changes
from tailrace.log.format.segment import list_segments, read_header
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.log.term import term_of
from tailrace.log.verify import verify
from tailrace.wire import pgoutput
from tests import command
from tests.command import Service
from tests.faults.source import Source
from tests.waiting import wait_for

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tailrace.log.format.segment import SegmentName
    from tailrace.position import Lsn, Position
    from tests.fix_postgres import Database

TABLE = """
CREATE TABLE ledger (
    writer int, seq bigint, tx_rows int, payload text, PRIMARY KEY (writer, seq)
);
CREATE PUBLICATION tailrace FOR TABLE ledger;
"""
Row = tuple["Position", int, tuple[object, ...]]
"""Position, transaction and columns."""


class Cluster(Source):
    """A database with its ledger and an oracle, and machines that may capture it."""

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__(database, TABLE)
        self._folder = folder
        self._committed: list[Row] = []
        self._machines: list[Machine] = []

    def machine(self, name: str, *, dsn: str | None = None) -> Machine:
        """A machine without a log."""
        made = Machine(self, self._folder / name, dsn or self.database.socket_dsn)
        self._machines.append(made)
        return made

    def end(self) -> None:
        """Kill what a test that failed has left running."""
        for machine in self._machines:
            machine.kill()

    def insert(self, seq: int, *, rows: int = 1) -> None:
        """Commit rows in one transaction."""
        self.database.execute(
            "INSERT INTO ledger SELECT 0, g, %s, 'row' FROM generate_series(%s::int, %s) g",
            *(rows, seq, seq + rows - 1),
        )

    def slots(self) -> list[str]:
        """The slots of capture, of any term."""
        rows = self.database.query(
            "SELECT slot_name::text FROM pg_replication_slots WHERE starts_with(slot_name, %s) "
            "ORDER BY 1",
            self.slot,
        )
        return [name for (name,) in rows]

    def slot_of(self, term: int) -> str:
        return f"{self.slot}_e{term}" if term else self.slot

    def confirmed_of(self, term: int) -> str:
        sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        [(lsn,)] = self.database.query(sql, self.slot_of(term))
        return str(lsn)

    def active(self, term: int) -> bool:
        sql = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        return self.database.query(sql, self.slot_of(term)) == [(True,)]

    def committed(self) -> list[Row]:
        """Every committed row, in the order of the commits, as PostgreSQL decodes it."""
        self._committed.extend(
            (position, xid, message.new)
            for position, xid, message in self.newly_committed()
            if isinstance(message, pgoutput.Insert)
        )
        return self._committed


class Machine:
    """A folder with a settings file and a log, and the commands that run there."""

    def __init__(self, cluster: Cluster, folder: Path, dsn: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.log_folder = folder / "log"
        self.config_file = folder / "tailrace.yml"
        folder.mkdir(parents=True)
        settings = {
            "source": {"dsn": dsn, "slot": cluster.slot},
            "log": {"path": "log", "flush_ms": 5, "flush_bytes": "8KiB", "segment_bytes": "64KiB"},
        }
        self.config_file.write_text(yaml.safe_dump(settings))
        self._captures: list[Service] = []

    @property
    def config(self) -> config.Config:
        return config.load(self.config_file)

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.log_folder)

    @property
    def log(self) -> Log:
        return Log.open(self.log_folder)

    @property
    def term(self) -> int:
        return term_of(lease.last_epoch(self.store))

    def capture(self, *, until: Lsn | None = None) -> Service:
        """Capture, as a process."""
        process = Service(
            *("capture", "-c", self.config_file),
            *(() if until is None else ("--until", until)),
            folder=self.folder,
            file=f"capture-{len(self._captures)}.log",
        )
        self._captures.append(process)
        return process.start()

    def streaming(self) -> Service:
        """Capture, once it reads its slot."""
        process = self.capture()
        process.wait_until(lambda: "capture.streaming" in process.output, "the stream")
        return process

    def catch_up(self) -> None:
        """Capture up to the present end of the WAL, and stop."""
        process = self.capture(until=self.cluster.server_end())
        assert process.wait() == 0, process.output[-3000:]
        wait_for(lambda: not self.cluster.active(self.term), "the slot to be free")

    def paused(self) -> Service:
        """Capture that reads its slot and has stopped in the middle: it acknowledges no more."""
        process = self.streaming()
        process.signal(signal.SIGSTOP)
        return process

    def kill(self) -> None:
        for process in self._captures:
            process.kill()

    def copy_log(self, other: Machine) -> None:
        """Copy the log of another machine, which may be writing it: first how far it is readable.

        The rest of the folder is removed first.
        """
        shutil.rmtree(self.log_folder, ignore_errors=True)
        self.log_folder.mkdir()
        names = sorted(path.name for path in other.log_folder.iterdir() if path.suffix != ".tmp")
        names.sort(key=lambda name: name[0].isdigit())
        for name in names:
            shutil.copyfile(other.log_folder / name, self.log_folder / name)

    def takeover(
        self, *arguments: str, failpoints: str = "", stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """`tailrace takeover`, as a process."""
        return command.run(
            "takeover",
            *arguments,
            env={"TAILRACE_FAILPOINTS": failpoints, "COLUMNS": "200"},
            folder=self.folder,
            stdin=stdin,
        )

    def take_over(self, *arguments: str) -> None:
        done = self.takeover("--yes", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    def changes(self) -> list[Change]:
        """The inserts that the log holds."""
        log = self.log
        found = read_changes(log, log.earliest(), log.end().position)
        return [change for change in found if change.op is not Op.MESSAGE]

    def check(self, *, complete: bool = True) -> int:
        """The log holds what was committed, in that order, each row once. Returns how many rows."""
        held = [(each.position, each.xid, each.after) for each in self.changes()]
        committed = self.cluster.committed()
        assert held == committed[: len(held)]
        if complete:
            assert len(held) == len(committed), "committed rows are missing"
        assert [str(finding) for finding in verify(self.store).findings] == []
        return len(held)

    def terms(self) -> list[tuple[int, int, str]]:
        """Of each segment: its sequence, its epoch's term, and the slot that its header names."""
        headers = [read_header(self.store, name)[0] for name in list_segments(self.store)]
        return [(each.sequence, term_of(each.epoch), each.identity.slot) for each in headers]

    def agrees_with(self, other: Machine) -> bool:
        """Segments with equal headers have the same bytes, as far as both go; no header that
        follows one that differs is equal."""
        ours, theirs = self._headers(), other._headers()
        equal = [name for name in ours.keys() & theirs.keys() if ours[name] == theirs[name]]
        first = max(min(ours), min(theirs))
        whole = sorted(equal) == [name for name in sorted(ours) if first <= name <= max(equal)]
        pairs = [
            [(each.log_folder / name.file).read_bytes() for each in (self, other)] for name in equal
        ]
        return whole and all(one.startswith(two) or two.startswith(one) for one, two in pairs)

    def _headers(self) -> dict[SegmentName, int]:
        return {name: read_header(self.store, name)[0].epoch for name in list_segments(self.store)}

    def files(self) -> dict[str, bytes]:
        """The lease and the segments: recovery may rewrite the last index and the mark."""
        paths = [self.log_folder / lease.NAME, *sorted(self.log_folder.glob("*.seg"))]
        return {path.name: path.read_bytes() for path in paths}


def pair_of(cluster: Cluster) -> tuple[Machine, Machine]:
    leader, other = cluster.machine("leader"), cluster.machine("other")
    cluster.insert(1, rows=3)
    leader.catch_up()
    other.copy_log(leader)
    return leader, other
