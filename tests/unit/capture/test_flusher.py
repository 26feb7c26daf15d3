"""The flusher: appends in order, reports idle and its first error."""

from __future__ import annotations

import select
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
import structlog

from tailrace.capture.flusher import Flusher
from tailrace.errors import DiskFullError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Appender:
    """Collects entries; waits for `release` and may fail."""

    def __init__(self) -> None:
        self.entries: list[object] = []
        self.release = threading.Event()
        self.release.set()
        self.error: Exception | None = None

    def append(self, entry: object) -> None:
        assert self.release.wait(30)
        if self.error is not None:
            raise self.error
        self.entries.append(entry)


@pytest.fixture
def appender() -> Appender:
    return Appender()


@pytest.fixture
def flusher(appender: Appender) -> Iterator[Flusher]:
    flusher = Flusher(cast("Any", appender))
    yield flusher
    appender.release.set()
    flusher.close()


def readable(flusher: Flusher) -> bool:
    return bool(select.select([flusher.wake_fd], [], [], 0)[0])


def test_entries_are_appended_in_order(appender: Appender, flusher: Flusher) -> None:
    for entries in ([1, 2], [3]):
        flusher.submit(cast("Any", entries))
        assert flusher.wait(30)
    assert appender.entries == [1, 2, 3]


def test_a_pipe_that_nobody_drains_does_not_end_the_thread(
    appender: Appender, flusher: Flusher
) -> None:
    """A stream without a pause: the pipe holds 65,536 signals."""
    for number in range(70_000):
        flusher.submit(cast("Any", [number]))
        assert flusher.wait(30)
    assert len(appender.entries) == 70_000
    assert readable(flusher)
    flusher.acknowledge_wake()
    assert not readable(flusher)


def test_it_is_busy_until_the_append_returns(appender: Appender, flusher: Flusher) -> None:
    assert flusher.idle
    appender.release.clear()
    flusher.submit(cast("Any", [1]))
    assert not flusher.idle
    assert not flusher.wait(0)
    assert not readable(flusher)
    appender.release.set()
    assert flusher.wait(30)


def test_the_pipe_becomes_readable_and_is_drained(flusher: Flusher) -> None:
    flusher.submit(cast("Any", [1]))
    assert select.select([flusher.wake_fd], [], [], 30)[0]
    flusher.acknowledge_wake()
    assert not readable(flusher)


def test_the_first_error_is_final(appender: Appender, flusher: Flusher) -> None:
    appender.error = DiskFullError("no space")
    flusher.submit(cast("Any", [1]))
    with pytest.raises(DiskFullError):
        flusher.wait(30)
    with pytest.raises(DiskFullError):
        flusher.check()
    with pytest.raises(DiskFullError):
        flusher.submit(cast("Any", [2]))


def test_a_stalled_disk_is_waited_for(flusher: Flusher, appender: Appender) -> None:
    appender.release.clear()
    flusher.submit(cast("Any", ["one"]))
    waiting = threading.Thread(target=flusher.finish)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    appender.release.set()
    waiting.join(30)
    assert appender.entries == ["one"]


def test_close_does_not_leave_a_thread_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a write that takes longer than any timeout WHEN the flusher is closed THEN it waits."""
    appender = Appender()
    appender.release.clear()
    flusher = Flusher(cast("Any", appender))
    flusher.submit(cast("Any", ["one"]))
    with structlog.testing.capture_logs() as logs:

        def join(_timeout: float | None = None, /, **_: object) -> None:
            if logs:
                appender.release.set()
                done.wait(30)

        done = flusher._idle
        monkeypatch.setattr(flusher._thread, "join", join)
        flusher.close()
    assert not flusher._thread.is_alive()
    assert appender.entries == ["one"]
    assert logs[0]["event"] == "capture.waiting_for_disk"
