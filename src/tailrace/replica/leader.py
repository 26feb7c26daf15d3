"""The leader: sends the log to all followers, and says how far a quorum of them has it.

It only reads the log, so it may end and start at any time. In mode `async` capture knows nothing of
it; in mode `sync` capture waits for the file that `quorum` writes.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import structlog

from tailrace.config.replication import exposed
from tailrace.errors import ConfigError, LogMissingError, TailraceError, UnexpectedError
from tailrace.log import lease
from tailrace.log.format.segment import list_segments
from tailrace.observe.replica import LeaderFigures
from tailrace.replica.quorum import Quorum
from tailrace.replica.sender import Sender
from tailrace.replica.states import States

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.config import Config
    from tailrace.log.store import LocalStore

_TICK_S = 0.2
_KEEP_EVERY_S = 1.0
_STOP_S = 3.0


class Leader:
    """Runs a sender for each follower."""

    def __init__(
        self,
        config: Config,
        store: LocalStore,
        *,
        stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = config.replication
        self._store = store
        self._stopping = stopping
        self._clock = clock
        self._failure: TailraceError | None = None
        self._state = "starting"
        settings = self._settings
        self._quorum = Quorum(store, settings.waits_for, hides=settings.hides)
        every_s = settings.state_every_s
        self._states = (
            States(config.data, store, every_s=every_s, quorum=settings.waits_for)
            if every_s
            else None
        )
        self._senders = [
            Sender(
                store, address, settings, self._quorum, self._states,
                stopping=self._ending, clock=clock,
            )
            for address in settings.followers
        ]  # fmt: skip

    def _ending(self) -> bool:
        return self._stopping() or self._failure is not None

    def run(self) -> None:
        """Send until `stopping` is true. Raises LogFencedError: another machine has taken over."""
        check_protection(self._settings.followers, protected=self._settings.protected())
        if not list_segments(self._store):
            raise LogMissingError(f"there is no log in {self._store} yet")
        tasks = [sender.run for sender in self._senders]
        if self._states is not None:
            tasks.append(partial(self._states.run, self._ending))
        threads = [
            threading.Thread(target=self._run, args=(task,), name="replica", daemon=True)
            for task in tasks
        ]
        for thread in threads:
            thread.start()
        self._state = "replicating"
        try:
            self._keep_logs()
        finally:
            self._state = "stopped" if self._failure is None else self._failure.code
            deadline = self._clock() + _STOP_S
            for thread in threads:
                thread.join(max(deadline - self._clock(), 0))
        if self._failure is not None:
            raise self._failure

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except TailraceError as error:
            self._failure = error
        except Exception as error:
            structlog.get_logger().exception("replica.sender_failed")
            self._failure = UnexpectedError.wrap(error)

    def _keep_logs(self) -> None:
        due_at = self._clock()
        while not self._ending():
            if self._clock() >= due_at:
                due_at = self._clock() + _KEEP_EVERY_S
                for sender in self._senders:
                    sender.keep_log()
            time.sleep(_TICK_S)

    def figures(self) -> LeaderFigures:
        """The status of this process."""
        needed, quorum = self._settings.waits_for, self._quorum.mark
        followers = tuple(sender.counts.figures for sender in self._senders)
        connected = sum(each.connected and each.version > 1 for each in followers)
        return LeaderFigures(
            state=self._state,
            mode=self._settings.mode,
            epoch=lease.last_epoch(self._store),
            quorum=needed,
            quorum_lsn=None if quorum is None else quorum.end_lsn,
            in_quorum=connected >= needed if needed else None,
            followers=followers,
        )


def check_protection(addresses: tuple[str, ...], *, protected: bool) -> None:
    """Refuse to send the log over a network where anybody could read or write it."""
    open_ones = [address for address in addresses if exposed(address)]
    if open_ones and not protected:
        raise ConfigError(
            f"{open_ones[0]} is reachable from other machines, and replication has no protection",
            hint="Set replication.tls (encrypted, both sides show a certificate), or "
            "replication.key (a shared secret; not encrypted).",
        )
