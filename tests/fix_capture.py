"""Fixtures that capture a database into a log and read the changes back."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tailrace import config
from tailrace.capture.capture import Capture
from tailrace.capture.replication import Replication
from tailrace.log.changes import read_changes
from tailrace.log.reader import Earliest, Log
from tailrace.position import Lsn, Position
from tests.columns import columnar, plain
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.change import Change
    from tests.fix_postgres import Database


class Captured:
    """A database, a publication, a slot and a log.

    Captures in the test's own process and thread, from wherever the log ends up to the server's
    current end of WAL: `catch_up`, then look at `changes`.
    """

    def __init__(self, database: Database, folder: Path, **settings: dict[str, object]) -> None:
        self.database = database
        self.folder = folder
        self.config = config.load(
            None,
            {
                "source": {
                    "dsn": database.socket_dsn,
                    "slot": database.name[-63:],
                    "publication": "tailrace",
                    **settings.get("source", {}),
                },
                "log": {"path": folder, "flush_ms": 1, **settings.get("log", {})},
                "capture": {"connect_timeout_s": LONG_S, **settings.get("capture", {})},
            },
        )
        self.slot = self.config.source.slot
        self.publication = self.config.source.publication

    def create_slot(self) -> None:
        self.database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self.slot)

    def replace_log(self) -> None:
        """What a user does after DIVERGED: a new log folder and a new slot."""
        shutil.rmtree(self.folder)
        self.database.query("SELECT pg_drop_replication_slot(%s)", self.slot)
        self.create_slot()

    def server_end(self) -> Lsn:
        """The end of WAL, flushed: a commit makes sure of that."""
        self.database.query("SELECT pg_logical_emit_message(true, 'test.flush', '')")
        return Lsn.parse(str(self.database.query("SELECT pg_current_wal_flush_lsn()")[0][0]))

    def catch_up(self) -> list[Change]:
        """Capture up to now and return the changes that are new, without the flush marker."""
        before = self.end_position()
        Capture(self.config, stopping=lambda: False).run(until=self.server_end())
        return [change for change in self.changes(before) if change.prefix != "test.flush"]

    def end_position(self) -> Position | None:
        return Log.open(self.folder).end().position if any(self.folder.glob("*.seg")) else None

    def changes(self, after: Position | None = None) -> list[Change]:
        """What the log holds after a position; both decoders must agree on it."""
        log = self.log
        start = log.resolve(Earliest()) if after is None else after
        # A capture may go on meanwhile: all three look at the same stretch.
        end = log.end().position
        found = list(read_changes(log, start, end))
        assert columnar(log.read(start, end), start, end) == plain(found)
        assert columnar(log.read(start, end), start, end, target_bytes=1 << 19) == plain(found)
        return found

    @property
    def log(self) -> Log:
        return Log.open(self.folder)


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Captured]:
    """`capture(database, **settings)` → a `Captured` with publication for all tables and slot.

    A capture that stops waits as long as a busy machine may take to save and release its slot.
    """
    monkeypatch.setattr("tailrace.capture.session._SAVE_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(Replication.finish, "__kwdefaults__", {"timeout_s": LONG_S})

    def make(database: Database, **settings: dict[str, object]) -> Captured:
        captured = Captured(database, tmp_path / f"log-{database.name}", **settings)
        exists = "SELECT 1 FROM pg_publication WHERE pubname = %s"
        if not database.query(exists, captured.publication):
            database.execute(f"CREATE PUBLICATION {captured.publication} FOR ALL TABLES")
        captured.create_slot()
        return captured

    return make
