"""Capture on a thread of its own, and waiting for what it does."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING, Any

from tailrace.capture.capture import Capture
from tailrace.position import Lsn
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database


class Running:
    """A capture on its thread."""

    def __init__(self, captured: Captured) -> None:
        self._stop = threading.Event()
        self._capture = Capture(captured.config, stopping=self._stop.is_set)
        self._thread = threading.Thread(target=self._run, name="capture")
        self._failure: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        try:
            self._capture.run()
        except BaseException as error:
            self._failure = error

    def failure(self) -> BaseException | None:
        """Wait for the capture to end by itself, and take its error."""
        wait_for(lambda: not self._thread.is_alive(), "capture ends")
        failure, self._failure = self._failure, None
        return failure

    def stop(self) -> None:
        self._stop.set()
        failure = self.failure()
        if failure is not None:
            raise failure


@contextlib.contextmanager
def running(captured: Captured) -> Iterator[Running]:
    """Capture in the background; an error that no test took is raised at the end."""
    capture = Running(captured)
    try:
        yield capture
    finally:
        capture.stop()


def settle(captured: Captured) -> None:
    """Wait until all that is committed now is in the log."""
    target = captured.server_end()
    wait_for(lambda: captured.log.end().end_lsn >= target, f"the log reaches {target}")


def slot_of(captured: Captured) -> dict[str, Any]:
    """The slot as PostgreSQL shows it; LSNs as text."""
    [(slot,)] = captured.database.query(
        "SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = %s", captured.slot
    )
    assert isinstance(slot, dict)
    return slot


def confirmed(captured: Captured) -> Lsn:
    """What PostgreSQL believes we have."""
    return Lsn.parse(slot_of(captured)["confirmed_flush_lsn"])


def restart(captured: Captured) -> Lsn:
    """Where PostgreSQL keeps its WAL from."""
    return Lsn.parse(slot_of(captured)["restart_lsn"])


def wal_end(database: Database) -> Lsn:
    """The end of what is flushed; after a commit, the end of that commit."""
    return Lsn.parse(database.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])


def walsender_pid(captured: Captured) -> int | None:
    pid = slot_of(captured)["active_pid"]
    assert pid is None or isinstance(pid, int)
    return pid


def write_items(database: Database, stopping: threading.Event, seed: int, keys: int) -> None:
    """Change `items (id, v)` at random until stopped; odd and even seeds never collide.

    Keys move away and come back, rows go and come again.
    """
    chance = random.Random(seed)
    mine = seed % 2
    with database.connect() as connection:
        number = 0
        while not stopping.is_set():
            number += 1
            at = chance.randrange(1, keys) * 2 + mine
            what = chance.random()
            if what < 0.5:
                sql = f"UPDATE items SET v = 'n{number}' WHERE id = {at}"
            elif what < 0.7:
                away = f"SELECT FROM items WHERE id = {at + 10000}"
                sql = f"UPDATE items SET id = id + 10000 WHERE id = {at} AND NOT EXISTS ({away})"
            elif what < 0.85:
                sql = f"DELETE FROM items WHERE id IN ({at}, {at + 10000})"
            else:
                sql = f"INSERT INTO items VALUES ({at}, 'i{number}') ON CONFLICT DO NOTHING"
            connection.execute(sql.encode())
