"""The source every benchmark reads: an embedded PostgreSQL with the eight-column table."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tailrace.position import Lsn
from tailrace.testing import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

TABLE = """
CREATE TABLE item (
    id bigint PRIMARY KEY, name text, email text, quantity int,
    price numeric(12, 2), active bool, detail jsonb, changed_at timestamptz
);
CREATE PUBLICATION tailrace FOR TABLE item;
CREATE PROCEDURE fill(transactions int, rows int, start bigint DEFAULT 0) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 0 .. transactions - 1 LOOP
        INSERT INTO item
        SELECT start + i::bigint * rows + g, 'name ' || g, 'user' || g || '@example.com', g,
               g * 1.25, g % 2 = 0, jsonb_build_object('a', g, 'b', 'text'), now()
        FROM generate_series(1, rows) g;
        COMMIT;
    END LOOP;
END $$;
"""
SETTINGS = {"max_wal_size": "16GB", "shared_buffers": "256MB", "checkpoint_timeout": "1h"}


class Source:
    """A database with the table, a connection to it, and slots on request."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server
        self.database = server.create_database("bench")
        self.connection: psycopg.Connection = server.connect(self.database)
        self.connection.execute(TABLE)

    @property
    def dsn(self) -> str:
        """The unix socket, for capture and reference alike."""
        return self.server.dsn(self.database, tcp=False)

    def value(self, sql: str, *params: object) -> object:
        row = self.connection.execute(sql.encode(), params or None).fetchone()
        return row and row[0]

    def create_slot(self, name: str) -> None:
        self.value("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)

    @contextlib.contextmanager
    def copied_slot(self, source: str) -> Iterator[str]:
        """A slot of its own for one run, at the same place as `source`."""
        name = f"{source}_copy"
        self.value("SELECT pg_copy_logical_replication_slot(%s, %s)", source, name)
        yield name
        self.drop_slot(name)

    def drop_slot(self, name: str) -> None:
        self.value("SELECT pg_drop_replication_slot(%s)", name)

    def end(self) -> Lsn:
        return Lsn.parse(str(self.value("SELECT pg_current_wal_flush_lsn()")))

    def confirmed(self, slot: str) -> Lsn:
        sql = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
        return Lsn.parse(str(self.value(sql, slot)))


@contextlib.contextmanager
def source() -> Iterator[Source]:
    """A fresh server for one benchmark."""
    with EmbeddedPostgres(18, settings=SETTINGS) as server:
        made = Source(server)
        try:
            yield made
        finally:
            made.connection.close()


@dataclass(slots=True)
class Run:
    """A finished process: from the moment it streams to its end."""

    seconds: float
    rss_mb: float


class Streaming:
    """A child process that reads a slot; knows when it began to stream and how big it grew."""

    def __init__(self, command: list[str], announces: str) -> None:
        self._command = command
        self._announces = announces
        self._started = threading.Event()
        self._lines: list[str] = []
        self._began = 0.0
        self.rss_mb = 0.0
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)
            if self._announces in line and not self._began:
                self._began = time.perf_counter()
                self._started.set()

    def wait_until_streaming(self) -> None:
        assert self._started.wait(60), "".join(self._lines)

    def current_rss_mb(self, field: str = "VmRSS") -> float:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith(field):
                    return int(line.split()[1]) / 1024
        return 0.0

    def finish(self) -> Run:
        """Wait for its end; the peak is read while it still lives."""
        while self.process.poll() is None:
            self.rss_mb = max(self.rss_mb, self.current_rss_mb("VmHWM"))
            time.sleep(0.02)
        ended = time.perf_counter()
        self._reader.join(5)
        if self.process.returncode != 0:
            raise RuntimeError(f"{self._command[0]} failed:\n{''.join(self._lines)}")
        return Run(ended - self._began, self.rss_mb)


def recvlogical(made: Source, slot: str, until: Lsn, *, tcp: bool = False) -> Streaming:
    """The reference: PostgreSQL's own client, throwing everything away."""
    server = made.server
    host = "127.0.0.1" if tcp else str(server.folder)
    command = [
        str(server.binary("pg_recvlogical")),
        *("-h", host, "-p", str(server.port), "-U", "postgres"),
        *("-d", made.database, "-S", slot, "--start", "-f", "/dev/null", "--no-loop", "-v"),
        *("-o", "proto_version=1", "-o", "publication_names=tailrace"),
        *("--endpos", str(until)),
    ]
    return Streaming(command, "streaming initiated")


@contextlib.contextmanager
def log_folder() -> Iterator[Path]:
    """A folder for one log, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="trbench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def capture(made: Source, slot: str, folder: Path, until: Lsn | None = None) -> Streaming:
    """`tailrace capture` with its defaults."""
    settings = folder / "tailrace.yml"
    source_settings = {"dsn": made.dsn, "slot": slot}
    settings.write_text(yaml.safe_dump({"source": source_settings, "log": {"path": "log"}}))
    command = [sys.executable, "-m", "tailrace.cli", "capture", "-c", str(settings)]
    if until is not None:
        command += ["--until", str(until)]
    return Streaming(command, "capture.streaming")
