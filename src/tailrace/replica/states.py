"""The newest bundles of a leader, and how each follower gets those that it lacks.

One thread makes bundles of what has changed. Each sender compares: a bundle goes to a follower when
the follower has the log up to the bundle's mark. So no position in it is beyond the copy.
"""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import TailraceError
from tailrace.replica.bundle import Bundler
from tailrace.replica.frames import BundleHead, Bundles, Type
from tailrace.replica.small_state import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace.log.format.mark import Mark
    from tailrace.log.store import LocalStore
    from tailrace.observe.figure import Recorder
    from tailrace.observe.replica import FollowerFigures
    from tailrace.replica.bundle import Bundle, Signature
    from tailrace.replica.connection import Connection

_BYTES_PER_S = 16 << 20
"""Large bundles are made less often: on average at most so many bytes a second are sent."""
_TICK_S = 0.2


class States:
    """The newest bundle of each name. One thread runs it, several read."""

    def __init__(
        self,
        data: Path,
        store: LocalStore,
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._data = data
        self._bundler = Bundler(data, store)
        self._every_s = every_s
        self._clock = clock
        self._signatures: dict[str, Signature] = {}
        self._due: dict[str, float] = {}
        self._failing: set[str] = set()
        self.newest: dict[str, Bundle] | None = None
        """By name. Replaced, never changed; None before the first round."""

    def run(self, stopping: Callable[[], bool]) -> None:
        """Make bundles until `stopping` is true."""
        while not stopping():
            self.refresh()
            until = self._clock() + self._every_s
            while not stopping() and self._clock() < until:
                time.sleep(min(_TICK_S, self._every_s))

    def refresh(self) -> None:
        """Make the bundles that have changed."""
        if waiting(self._data):
            # What another leader has sent is newer than what this folder has.
            return
        try:
            names = self._bundler.names()
        except OSError as error:
            self._note_failure("", error)
            return
        made = dict(self.newest or {})
        for name in names:
            if self._clock() < self._due.get(name, 0.0):
                continue
            try:
                if (bundle := self._changed(name)) is not None:
                    made[name] = bundle
                self._failing.discard(name)
            except (OSError, sqlite3.Error, TailraceError) as error:
                self._note_failure(name, error)
        self.newest = {name: made[name] for name in names if name in made}

    def _changed(self, name: str) -> Bundle | None:
        signature = self._bundler.signature(name)
        if signature == self._signatures.get(name):
            return None
        bundle = self._bundler.make(name)
        if bundle is None:
            return None
        self._signatures[name] = signature
        self._due[name] = self._clock() + bundle.size / _BYTES_PER_S
        known = (self.newest or {}).get(name)
        return None if known and (known.size, known.crc) == (bundle.size, bundle.crc) else bundle

    def _note_failure(self, name: str, error: Exception) -> None:
        if name not in self._failing:
            self._failing.add(name)
            structlog.get_logger().warning("replica.state_unread", name=name, reason=str(error))


class Transfer:
    """Brings one follower's bundles up to date over one connection, a piece at a time."""

    def __init__(
        self, states: States | None, connection: Connection, counts: Recorder[FollowerFigures]
    ) -> None:
        self._states = states
        self._connection = connection
        self._counts = counts
        self._names: tuple[str, ...] | None = None
        self._sent: dict[str, Bundle] = {}
        self._pieces: Iterator[bytes] | None = None

    def step(self, sent: Mark, visible: Mark | None) -> bool:
        """Send the next piece, if there is one and the follower has what it needs.

        `sent` and `visible` are the marks that the follower was sent last.
        """
        newest = None if self._states is None else self._states.newest
        if newest is None:
            return False
        if self._pieces is not None:
            return self._piece(self._pieces)
        if (names := tuple(newest)) != self._names:
            self._names = names
            self._connection.say(Type.BUNDLES, Bundles(names=names))
            return True
        lacking = [each for name, each in newest.items() if self._sent.get(name) is not each]
        self._counts.set(state_lacking=len(lacking))
        for bundle in lacking:
            if bundle.mark.place <= sent.place and _reaches(visible, bundle.visible):
                head = BundleHead(name=bundle.name, size=bundle.size, crc=bundle.crc)
                self._connection.say(Type.BUNDLE, head)
                self._sent[bundle.name] = bundle
                self._pieces = bundle.pieces()
                return True
        return False

    def _piece(self, pieces: Iterator[bytes]) -> bool:
        piece = next(pieces, None)
        if piece is None:
            self._pieces = None
        else:
            self._connection.send(Type.CONTENT, piece, compress=True)
            self._counts.add(state_bytes=len(piece))
        return True


def _reaches(mark: Mark | None, needed: Mark | None) -> bool:
    return needed is None or (mark is not None and mark.place >= needed.place)
