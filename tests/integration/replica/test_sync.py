"""Mode sync: PostgreSQL forgets what a quorum of followers has, and nothing more."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tailrace.capture.capture import Capture
from tailrace.config import load
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.position import Lsn
from tests.fix_log import all_changes
from tests.integration.replica.cluster import QUICK, Copy, Leading, free_port
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database


class Streaming:
    """Capture in a thread."""

    def __init__(self, captured: Captured, **replication: object) -> None:
        values = {**QUICK, **replication}
        fresh = load(None, {"replication": values}).replication
        self.config = captured.config.model_copy(update={"replication": fresh})
        self._stop = threading.Event()
        self.capture = Capture(self.config, stopping=self._stop.is_set)
        self._thread = threading.Thread(target=self.capture.run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def ending() -> Iterator[list[Copy | Leading | Streaming]]:
    """What has to end after a test, the last one first."""
    running: list[Copy | Leading | Streaming] = []
    yield running
    for each in reversed(running):
        each.end()


def confirmed(captured: Captured) -> Lsn:
    statement = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
    return Lsn.parse(str(captured.database.query(statement, captured.slot)[0][0]))


def test_the_slot_waits_for_the_quorum(
    database: Database,
    capture: Callable[..., Captured],
    tmp_path: Path,
    ending: list[Copy | Leading | Streaming],
) -> None:
    """GIVEN mode sync without a follower THEN the slot stays where it is, and readers see nothing;
    WHEN the follower comes THEN both go on; WHEN it leaves THEN the slot waits again."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    start = confirmed(captured)
    port = free_port()
    settings = {"followers": [f"127.0.0.1:{port}"], "mode": "sync", "visible": "quorum"}
    streaming = Streaming(captured, **settings)
    ending.append(streaming)
    database.execute("INSERT INTO items SELECT generate_series(1, 100)")
    written = captured.server_end()
    store = LocalStore(captured.folder)
    wait_for((captured.folder / "visible").exists)
    wait_for(lambda: Log(store).durable_end().end_lsn >= written)
    ending.append(Leading(store, *settings["followers"], mode="sync", visible="quorum"))
    holds(lambda: confirmed(captured) == start, 1.0)
    assert all_changes(store) == []
    follower = Copy(tmp_path / "copy", port)
    ending.append(follower)
    wait_for(lambda: confirmed(captured) >= written)
    wait_for(lambda: len([each for each in all_changes(store) if not each.prefix]) == 100)
    wait_for(lambda: follower.changes() == all_changes(store))
    follower.end()
    before = confirmed(captured)
    database.execute("INSERT INTO items VALUES (101)")
    written = captured.server_end()
    wait_for(lambda: Log(store).durable_end().end_lsn >= written)
    assert confirmed(captured) < written
    holds(lambda: confirmed(captured) == before, 0.5)
    ending.remove(follower)
    ending.append(Copy(tmp_path / "copy", port))
    wait_for(lambda: confirmed(captured) >= written)


def test_async_followers_hold_nothing_back(
    database: Database,
    capture: Callable[..., Captured],
    ending: list[Copy | Leading | Streaming],
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    ending.append(Streaming(captured, followers=[f"127.0.0.1:{free_port()}"]))
    database.execute("INSERT INTO items SELECT generate_series(1, 100)")
    written = captured.server_end()
    wait_for(lambda: confirmed(captured) >= written)
    assert not (captured.folder / "visible").exists()
