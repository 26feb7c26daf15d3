"""The flusher: a second thread that does nothing but write and fsync.

`write`, `fdatasync`, checksums and compression let go of the interpreter lock, so the receiver
goes on filling the next buffer meanwhile. There is at most one hand-over in flight; while it is,
the receiver gathers, and so entries grow with the load by themselves: group commit.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.log.appender import Appender
    from tailrace.log.format.entry import Entry


class Flusher:
    """Appends entries in the background, in order. A failure is final; `check` raises it."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
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
            except BaseException as error:
                self._error = error
            del entries
            self._idle.set()
            os.write(self._done_fd, b".")

    @property
    def idle(self) -> bool:
        """Whether everything handed over is durable. Readable through `wake_fd` as well."""
        return self._idle.is_set()

    def check(self) -> None:
        """Raise what the disk said, if it said no."""
        if self._error is not None:
            raise self._error

    def submit(self, entries: Sequence[Entry]) -> None:
        """Hand entries over; only when idle."""
        self.check()
        assert self._idle.is_set()
        self._idle.clear()
        self._queue.put(entries)

    def acknowledge_wake(self) -> None:
        """Empty the pipe behind `wake_fd`."""
        try:
            while os.read(self.wake_fd, 64):
                pass
        except BlockingIOError:
            pass

    def wait(self, timeout_s: float) -> bool:
        """Wait until idle; False when it takes longer."""
        done = self._idle.wait(timeout_s)
        self.check()
        return done

    def close(self) -> None:
        """End the thread after what is in flight."""
        self._queue.put(None)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            os.close(self.wake_fd)
            os.close(self._done_fd)
