"""The quorum: how far enough followers have fsynced the log.

The leader's process notes every acknowledgement here and overwrites the file `quorum-N` when the
N-th best mark has moved. Capture reads it before it acknowledges to PostgreSQL. The number is part
of the name, so that a file of other settings is never taken for an answer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tailrace.log import acknowledged
from tailrace.log.format import mark as marks

if TYPE_CHECKING:
    from tailrace.log.format.mark import Mark
    from tailrace.log.store import Store


class Quorum:
    """The marks of all followers, and what N of them have."""

    def __init__(self, store: Store, needed: int, *, hides: bool) -> None:
        self._store = store
        self._needed = needed
        self._hides = hides
        self._held: dict[str, Mark] = {}
        """By follower: its id, or without one its address."""
        self._followers: dict[str, str] = {}
        """The follower at each address."""
        self._lock = threading.Lock()
        self.mark = acknowledged.read(store, needed) if needed else None
        """What a quorum has; None if there was never one, or none is needed."""
        if hides and self.mark is not None:
            # After a power cut the file of the readers may be older than the one of the quorum.
            visible = marks.read(store, marks.VISIBLE)
            if visible is None or visible.place < self.mark.place:
                marks.write(store, self.mark, name=marks.VISIBLE, durably=True)

    def note(self, address: str, mark: Mark, *, follower: str = "") -> None:
        """The follower at an address has fsynced up to a mark. Several addresses may lead to it."""
        with self._lock:
            self._forget(address)
            self._followers[address] = follower or address
            self._held[follower or address] = mark
            if not self._needed or len(self._held) < self._needed:
                return
            best = sorted(self._held.values(), key=lambda each: each.place, reverse=True)
            reached = best[self._needed - 1]
            if self.mark is None or reached.place > self.mark.place:
                # Readers see it first: a change may be delivered once it is safe, and PostgreSQL
                # may forget it then.
                if self._hides:
                    marks.write(self._store, reached, name=marks.VISIBLE)
                acknowledged.write(self._store, self._needed, reached)
                self.mark = reached

    def forget(self, address: str, *, follower: str = "") -> None:
        """A follower starts over: it has nothing."""
        with self._lock:
            self._forget(address)
            self._held.pop(follower or address, None)

    def _forget(self, address: str) -> None:
        """Forget the follower that was last at an address."""
        self._held.pop(self._followers.pop(address, ""), None)
