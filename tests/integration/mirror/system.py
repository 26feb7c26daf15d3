"""A whole system with mirrors of its tables, in the process of the test or in others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

from tailrace import client
from tailrace.mirror import Mirror, Phase, Status, target_of
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_postgres import Database
    from tests.integration.client.system import System


class Running:
    """A mirror in its own thread."""

    def __init__(self, url: str, table: str, to: str, **options: Any) -> None:
        self.events: list[str] = []
        self.status = Status(table=table, on_event=lambda _, text: self.events.append(text))
        self.failure: BaseException | None = None
        self._url, self._table, self._to, self._options = url, table, to, options
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"mirror {table}")
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._mirror())
            except BaseException as error:
                self.failure = error

    async def _mirror(self) -> None:
        self._task = asyncio.current_task()
        async with client.connect(self._url) as connected:
            target = target_of(self._to, self._table)
            mirror = Mirror(connected, self._table, target, status=self.status, **self._options)
            await mirror.run()

    def wait(self, condition: Any, what: str) -> None:
        """Wait until a condition holds once, or raise the error of the mirror."""
        held = False

        def ended() -> bool:
            nonlocal held
            alive = self._thread.is_alive()
            held = bool(condition())
            return held or not alive

        wait_for(ended, what)
        if not held and self.failure is not None:
            raise self.failure
        assert held, (what, self.events)

    def follows(self) -> Running:
        self.wait(lambda: self.status.phase is Phase.FOLLOWING, "the mirror follows")
        return self

    def ended(self) -> BaseException | None:
        """Wait for its end; its error."""
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()
        return self.failure

    def stop(self) -> None:
        for _ in range(2 * LONG_S):
            # One cancellation may not be enough: see `tailrace.mirror.cancel_all`.
            if self._thread.is_alive() and self._task is not None:
                with contextlib.suppress(RuntimeError):  # the loop has just been closed
                    self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(0.5)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def mirror(system: System, table: str, to: str, **options: Any) -> Iterator[Running]:
    """A mirror until the block ends. Raises the error that ended it."""
    running = Running(system.server.url, table, to, **options)
    try:
        yield running
    finally:
        running.stop()
    if running.failure is not None and not isinstance(running.failure, asyncio.CancelledError):
        raise running.failure


def target_url(database: Database) -> str:
    """The address of a database as a target."""
    host, port = "127.0.0.1", database.server.port
    return f"postgresql://postgres@{host}:{port}/{database.name}"
