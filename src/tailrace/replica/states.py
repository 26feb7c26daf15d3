"""The newest bundles of a leader, and how each follower gets those that it lacks.

One thread makes bundles of what has changed. Each sender compares: a bundle goes to a follower when
the follower has the log up to the bundle's mark. So no position in it is beyond the copy.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import structlog

from tailrace import private
from tailrace.errors import TailraceError
from tailrace.log.store import LocalStore
from tailrace.replica.bundle import Bundler
from tailrace.replica.frames import BundleHead, Bundles, Type
from tailrace.replica.small_state import SHARED, pipeline_of, waiting
from tailrace.replicated import WANTED, Replicated, folder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tailrace.log.format.mark import Mark
    from tailrace.observe.figure import Recorder
    from tailrace.observe.replica import FollowerFigures
    from tailrace.replica.bundle import Bundle, Signature
    from tailrace.replica.connection import Connection
    from tailrace.replica.frames import Stored

_BYTES_PER_S = 16 << 20
"""Large bundles are made less often: on average at most so many bytes a second are sent."""
_TICK_S = 0.2
_UNSTORED = 4
_RESEND_S = 5.0
"""After this, a follower that has not stored a bundle gets it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The state of a leader, as far as it could be read."""

    names: tuple[str, ...]
    """All that there are. Followers keep what they have of one that cannot be read at present."""
    bundles: Mapping[str, Bundle]


class States:
    """The newest bundle of each name. One thread runs it, several read.

    `quorum` followers must have a bundle before tasks may rely on it; 0: no task waits.
    """

    def __init__(
        self,
        data: Path,
        store: LocalStore,
        *,
        every_s: float,
        quorum: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._data = data
        self._bundler = Bundler(data, store)
        self._every_s = every_s
        self._clock = clock
        self._signatures: dict[str, Signature] = {}
        self._due: dict[str, float] = {}
        self._failing: set[str] = set()
        self._holders = Holders(folder_of(data), quorum)
        self.newest: Newest | None = None
        """Replaced, never changed; None before the first round."""

    def run(self, stopping: Callable[[], bool]) -> None:
        """Make bundles until `stopping` is true."""
        private.create_folder(folder_of(self._data))
        (folder_of(self._data) / WANTED).touch()
        wanted = LocalStore(folder_of(self._data)).watch(WANTED)
        hurry = False
        while not stopping():
            self.refresh(hurry=hurry)
            until, hurry = self._clock() + self._every_s, False
            while not stopping() and self._clock() < until and not hurry:
                hurry = wanted.wait(_TICK_S)

    def join(self, follower: object) -> None:
        """A follower is connected."""
        self._holders.join(follower)

    def leave(self, follower: object) -> None:
        """A follower is gone."""
        self._holders.leave(follower)

    def stored(self, follower: object, bundle: Bundle) -> None:
        """A follower has a bundle durably."""
        self._holders.note(follower, bundle)

    def refresh(self, *, hurry: bool = False) -> None:
        """Make the bundles that have changed; in a hurry, large ones, too."""
        if waiting(self._data):
            # What another leader has sent is newer than what this folder has.
            return
        try:
            names = self._bundler.names()
        except OSError as error:
            self._note_failure("", error)
            return
        made = dict(self._made())
        for name in names:
            if not hurry and self._clock() < self._due.get(name, 0.0):
                continue
            try:
                if (bundle := self._changed(name)) is not None:
                    made[name] = bundle
                self._failing.discard(name)
            except (OSError, sqlite3.Error, TailraceError) as error:
                self._note_failure(name, error)
        bundles = {name: made[name] for name in names if name in made}
        self.newest = Newest(names=tuple(names), bundles=bundles)

    def _made(self) -> Mapping[str, Bundle]:
        return {} if self.newest is None else self.newest.bundles

    def _changed(self, name: str) -> Bundle | None:
        known, as_of_ns = self._made().get(name), time.monotonic_ns()
        signature = self._bundler.signature(name)
        if known is not None and signature == self._signatures.get(name):
            self._still(known, as_of_ns)
            return None
        bundle = self._bundler.make(name)
        if bundle is None:
            return None
        self._signatures[name] = signature
        self._due[name] = self._clock() + bundle.size / _BYTES_PER_S
        if known is not None and (known.size, known.crc) == (bundle.size, bundle.crc):
            self._still(known, bundle.as_of_ns)
            return None
        return bundle

    def _still(self, bundle: Bundle, as_of_ns: int) -> None:
        """A bundle that was made earlier is what a new one would be."""
        bundle.as_of_ns = as_of_ns
        self._holders.look(bundle.name)

    def _note_failure(self, name: str, error: Exception) -> None:
        if name not in self._failing:
            self._failing.add(name)
            structlog.get_logger().warning("replica.state_unread", name=name, reason=str(error))


class Holders:
    """Which followers have which bundles, and up to which time so many of them have all.

    Every follower that is connected must have a bundle: any of them may take over.
    """

    def __init__(self, folder: Path, quorum: int) -> None:
        self._folder = folder
        self._quorum = quorum
        self._lock = threading.Lock()
        self._connected: set[object] = set()
        self._held: dict[str, dict[object, Bundle]] = {}
        self._noted: dict[str, int] = {}

    def join(self, follower: object) -> None:
        """A follower is connected, and has nothing yet."""
        with self._lock:
            self._connected.add(follower)

    def leave(self, follower: object) -> None:
        """A follower is gone. What it has, it keeps, but a newer connection counts anew."""
        with self._lock:
            self._connected.discard(follower)
            for holders in self._held.values():
                holders.pop(follower, None)

    def note(self, follower: object, bundle: Bundle) -> None:
        """A follower has a bundle durably."""
        with self._lock:
            self._held.setdefault(bundle.name, {})[follower] = bundle
        self.look(bundle.name)

    def look(self, name: str) -> None:
        """Write down how far enough followers are."""
        if not self._quorum or name == SHARED:
            return
        with self._lock:
            held = self._held.get(name, {})
            needed = max(self._quorum, len(self._connected))
            times = sorted((bundle.as_of_ns for bundle in held.values()), reverse=True)
            if len(times) >= needed and times[needed - 1] > self._noted.get(name, 0):
                self._noted[name] = times[needed - 1]
                Replicated(self._folder, pipeline_of(name)).note(times[needed - 1])


class Transfer:
    """Brings one follower's bundles up to date over one connection, a piece at a time."""

    def __init__(
        self,
        states: States | None,
        connection: Connection,
        counts: Recorder[FollowerFigures],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._states = states
        self._connection = connection
        self._counts = counts
        self._clock = clock
        self._names: tuple[str, ...] | None = None
        self._sent: dict[str, _Sent] = {}
        """The last one of each name, in the order in which they were sent."""
        self._unstored: dict[str, deque[Bundle]] = {}
        """The last ones, which the follower may not have yet."""
        self._stored: dict[str, Bundle] = {}
        self._pieces: Iterator[bytes] | None = None
        if states is not None:
            states.join(self)

    def close(self) -> None:
        """The connection has ended."""
        if self._states is not None:
            self._states.leave(self)

    def stored(self, stored: Stored) -> None:
        """The follower has a bundle durably."""
        for bundle in self._unstored.get(stored.name, ()):
            if bundle.crc == stored.crc and self._states is not None:
                self._stored[bundle.name] = bundle
                self._states.stored(self, bundle)
                break

    def step(self, sent: Mark, visible: Mark | None) -> bool:
        """Send the next piece, if there is one and the follower has what it needs.

        `sent` and `visible` are the marks that the follower was sent last.
        """
        newest = None if self._states is None else self._states.newest
        if newest is None:
            return False
        if self._pieces is not None:
            return self._piece(self._pieces)
        if newest.names != self._names:
            self._names = newest.names
            self._connection.say(Type.BUNDLES, Bundles(names=newest.names))
            return True
        bundles = newest.bundles.values()
        lacking = [each for each in bundles if self._stored.get(each.name) is not each]
        if self._counts.figures.state_lacking != len(lacking):
            self._counts.set(state_lacking=len(lacking))
        # What was sent long ago goes first: a large bundle must not hold up all others.
        order = {name: number for number, name in enumerate(self._sent, 1)}
        for bundle in sorted(lacking, key=lambda each: order.get(each.name, 0)):
            if (
                self._due(bundle)
                and bundle.mark.place <= sent.place
                and _reaches(visible, bundle.visible)
            ):
                self._begin(bundle)
                return True
        return False

    def _due(self, bundle: Bundle) -> bool:
        """Whether the follower was not sent this one, or was unable to store it: a full disk."""
        last = self._sent.get(bundle.name)
        return last is None or last.bundle is not bundle or self._clock() >= last.again_at

    def _begin(self, bundle: Bundle) -> None:
        head = BundleHead(name=bundle.name, size=bundle.size, crc=bundle.crc)
        self._connection.say(Type.BUNDLE, head)
        self._sent.pop(bundle.name, None)
        again_at = self._clock() + max(_RESEND_S, bundle.size / _BYTES_PER_S)
        self._sent[bundle.name] = _Sent(bundle, again_at)
        unstored = self._unstored.setdefault(bundle.name, deque(maxlen=_UNSTORED))
        unstored.append(bundle)
        self._pieces = bundle.pieces()

    def _piece(self, pieces: Iterator[bytes]) -> bool:
        piece = next(pieces, None)
        if piece is None:
            self._pieces = None
        else:
            self._connection.send(Type.CONTENT, piece, compress=True)
            self._counts.add(state_bytes=len(piece))
        return True


class _Sent(NamedTuple):
    bundle: Bundle
    again_at: float


def _reaches(mark: Mark | None, needed: Mark | None) -> bool:
    return needed is None or (mark is not None and mark.place >= needed.place)
