"""The flusher: the thread that writes entries to the log and fsyncs them.

`write`, `fdatasync`, checksums and compression release the interpreter lock, so the session keeps
receiving during a flush. At most one submission is in flight. While it is, the session collects
messages, so entries grow with the load: group commit.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.log.appender import Appender
    from tailrace.log.format.entry import Entry

_WARNING_INTERVAL_S = 10


class Flusher:
    """Appends entries in the background, in order. The first failure is final: `check` raises it.

    `wake_fd` becomes readable after every submission, so that a poll on the socket also ends when
    the disk is ready. `durable` is called with each entry that is.
    """

    def __init__(
        self, appender: Appender, durable: Callable[[Entry], None] = lambda _: None
    ) -> None:
        self._appender = appender
        self._durable = durable
        self._queue: queue.SimpleQueue[Sequence[Entry] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._error: BaseException | None = None
        self.wake_fd, self._done_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._done_fd, False)
        self._thread = threading.Thread(target=self._run, name="tailrace-flusher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (entries := self._queue.get()) is not None:
            try:
                for entry in entries:
                    self._appender.append(entry)
                    self._durable(entry)
            except BaseException as error:
                self._error = error
            del entries
            self._idle.set()
            # A stream without a pause never drains the pipe. A full pipe is readable as well.
            with contextlib.suppress(BlockingIOError):
                os.write(self._done_fd, b".")

    @property
    def idle(self) -> bool:
        """Whether everything submitted is durable."""
        return self._idle.is_set()

    def check(self) -> None:
        """Raise the error of a failed append."""
        if self._error is not None:
            raise self._error

    def submit(self, entries: Sequence[Entry]) -> None:
        """Append these entries in the background. Only allowed when idle."""
        self.check()
        assert self._idle.is_set()
        self._idle.clear()
        self._queue.put(entries)

    def acknowledge_wake(self) -> None:
        """Drain the pipe of `wake_fd`."""
        try:
            while os.read(self.wake_fd, 64):
                pass
        except BlockingIOError:
            pass

    def wait(self, timeout_s: float) -> bool:
        """Wait until idle; False after the timeout."""
        done = self._idle.wait(timeout_s)
        self.check()
        return done

    def finish(self) -> None:
        """Wait until idle, however long the disk takes: the log belongs to the flusher."""
        while not self._idle.wait(_WARNING_INTERVAL_S):
            _warn()
        self.check()

    def close(self) -> None:
        """Finish the submission in flight, however long the disk takes, and end the thread."""
        self._queue.put(None)
        while self._thread.is_alive():
            self._thread.join(_WARNING_INTERVAL_S)
            if self._thread.is_alive():
                _warn()
        os.close(self.wake_fd)
        os.close(self._done_fd)


def _warn() -> None:
    structlog.get_logger().warning("capture.waiting_for_disk")
