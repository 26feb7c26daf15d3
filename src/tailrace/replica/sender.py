"""The sender: keeps one follower up to date, over one connection after another.

One thread per follower. The log is its queue: what a follower lacks is read from the files, whether
it was away for a millisecond or for a day. A pin keeps the segments that it still needs, until it
lags by more than the limits; then it starts over when it comes back.
"""

from __future__ import annotations

import re
import time
import zlib
from typing import TYPE_CHECKING

import structlog

from tailrace.config.replication import host_and_port
from tailrace.errors import (
    LogFencedError,
    ReplicaRefusedError,
    ReplicaUnreachableError,
    TailraceError,
)
from tailrace.log import retention
from tailrace.observe.figure import Recorder
from tailrace.observe.replica import FollowerFigures
from tailrace.replica import frames, greeting, seed
from tailrace.replica.connection import Connection, connect
from tailrace.replica.copying import Copying
from tailrace.replica.lag import Lag
from tailrace.replica.stream import EntryStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.config.replication import Replication
    from tailrace.log.format.mark import Mark
    from tailrace.log.store import Store
    from tailrace.replica.lag import Distance
    from tailrace.replica.quorum import Quorum
    from tailrace.replica.states import States

_TICK_S = 0.2
_PIN_EVERY_S = 10.0
_NO_KEY_HINT = (
    "Followers of version 1 cannot prove that they know replication.key, so they are not served. "
    "Set replication.tls for them."
)


class Sender:
    """Sends one log to one follower until `stopping` is true."""

    def __init__(
        self,
        store: Store,
        address: str,
        settings: Replication,
        quorum: Quorum,
        states: States | None = None,
        *,
        stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._address = address
        self._settings = settings
        self._quorum = quorum
        self._states = states
        self._stopping = stopping
        self._clock = clock
        self._version = frames.VERSION
        self._lag = Lag(store, settings)
        self._given_up = False
        self._pin = pin_of(address)
        self._pinned_at = float("-inf")
        self._lag.resume(retention.own_pin(store, self._pin))
        self.counts = Recorder(FollowerFigures(address=address))
        self._events = structlog.get_logger().bind(follower=address)

    def run(self) -> None:
        """Connect again and again. Raises LogFencedError: another machine has taken over."""
        while not self._stopping():
            offered = self._version
            try:
                self._connect()
            except LogFencedError:
                self.counts.set(state=LogFencedError.code, connected=False)
                raise
            except TailraceError as error:
                self._note_failure(error)
            # A follower that refused one version is offered the other at once.
            if not (offered == frames.VERSION and self._version == seed.VERSION):
                self._pause(self._settings.reconnect_s)

    def _note_failure(self, error: TailraceError) -> None:
        before = self.counts.figures
        self.counts.set(state=error.code, reason=str(error), connected=False)
        if (before.state, before.reason) != (error.code, str(error)):
            log = self._events.warning if error.transient else self._events.error
            log("replica.disconnected", code=error.code, reason=str(error), hint=error.hint)

    def _pause(self, seconds: float) -> None:
        deadline = self._clock() + seconds
        while not self._stopping() and self._clock() < deadline:
            time.sleep(min(_TICK_S, max(deadline - self._clock(), 0)))

    def _connect(self) -> None:
        """One connection: offer a version, and send."""
        with connect(host_and_port(self._address), self._settings) as connection:
            name = greeting.node_name(self._settings).encode()
            sync = self._settings.waits_for > 0
            hello = seed.Handshake(version=self._version, node=zlib.crc32(name), sync=sync)
            connection.send_bytes(hello.encode())
            answer = self._answer(connection)
            self.counts.add(connections=1)
            self.counts.set(version=self._version)
            self._events.info("replica.connected", version=self._version)
            if self._version == seed.VERSION:
                EntryStream(
                    self._store, connection, self._settings, self.counts, held=self._keep_from
                ).send(answer.end_lsn, self._stopping)
            else:
                Copying(
                    self._store, connection, self._settings, self.counts,
                    held=self._hold, states=self._states,
                ).run(self._stopping)  # fmt: skip

    def _answer(self, connection: Connection) -> seed.Answer:
        """The follower's answer. Without a yes, the next connection offers the other version."""
        falls_back = self._version == frames.VERSION and may_fall_back(self._settings)
        other = seed.VERSION if falls_back else frames.VERSION
        try:
            answer = connection.receive_answer()
        except ReplicaUnreachableError:
            self._version = other
            raise
        if not answer.accepted:
            self._version = other
            raise ReplicaRefusedError(
                f"{self._address} refuses: {answer.message or 'without a reason'}",
                hint="" if may_fall_back(self._settings) else _NO_KEY_HINT,
            )
        return answer

    def _hold(self, follower: str, mark: Mark | None) -> None:
        """The follower with this id has fsynced up to a mark; None: it starts over."""
        self._lag.held = mark
        if mark is None:
            self._quorum.forget(self._address, follower=follower)
        else:
            self._quorum.note(self._address, mark, follower=follower)
            self.counts.set(acknowledged=mark.end_lsn)

    def _keep_from(self, mark: Mark) -> None:
        """A follower of version 1 has received up to a mark. It may not be durable there."""
        self._lag.held = mark

    def keep_log(self) -> None:
        """Keep what the follower lacks, or give it up if that is too much."""
        lag = self._lag.measure()
        self.counts.set(lag_bytes=lag.bytes, lag_s=lag.seconds)
        if lag.position is None:
            return
        if lag.too_much:
            if not self._given_up:
                self._give_up(lag)
            return
        if self._given_up:
            self._given_up, self._pinned_at = False, float("-inf")
        if self._clock() - self._pinned_at >= _PIN_EVERY_S:
            self._pinned_at = self._clock()
            retention.pin(self._store, self._pin, lag.position, now=time.time())

    def _give_up(self, lag: Distance) -> None:
        """It may still be connected and get something, only too slowly."""
        self._given_up = True
        retention.unpin(self._store, self._pin)
        self._events.warning(
            "replica.given_up", lag_bytes=lag.bytes, lag_s=lag.seconds,
            fix="It starts over when it comes back, if the log has moved on by then.",
        )  # fmt: skip


def may_fall_back(settings: Replication) -> bool:
    """Whether version 1 may be offered, in which no side can prove that it knows a shared key."""
    return settings.tls is not None or not settings.key.get_secret_value()


def pin_of(address: str) -> str:
    """The name of a follower's pin.

    >>> pin_of("DB2:7432")
    'follower.db2-7432'
    """
    return f"follower.{re.sub('[^a-z0-9_-]', '-', address.lower())}"
