"""Capture on a thread of its own, and waiting for what it does."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from tailrace.capture.capture import Capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_capture import Captured

_PATIENCE_S = 60


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def running(captured: Captured) -> Iterator[threading.Thread]:
    """Capture in the background; its error, if it ends with one, is raised at the end."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            Capture(captured.config, stopping=stop.is_set).run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="capture")
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(_PATIENCE_S)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def settle(captured: Captured) -> None:
    """Wait until all that is committed now is in the log."""
    target = captured.server_end()
    eventually(lambda: captured.log.end().end_lsn >= target, f"the log reaches {target}")


def slot_of(captured: Captured) -> dict[str, Any]:
    """The slot as PostgreSQL shows it; LSNs as text."""
    [(slot,)] = captured.database.query(
        "SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = %s", captured.slot
    )
    assert isinstance(slot, dict)
    return slot


def walsender_pid(captured: Captured) -> int | None:
    pid = slot_of(captured)["active_pid"]
    assert pid is None or isinstance(pid, int)
    return pid
