"""When a follower takes over by itself.

Two signs have to last: the leader is silent, and no session reads the slot of the highest term. A
leader whose sender is down still reads its slot, and one whose capture restarts still sends. While
PostgreSQL cannot be asked, no follower takes over: there is nothing to capture. When a higher term
appears, the time begins anew: another machine has just taken over, and is starting.

The signs are about convenience. Safety is the slot's: whatever they say, one candidate wins, and
none without all changes (`tailrace.replica.takeover`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.postgres.connection import connect
from tailrace.postgres.slot_terms import read_reader, read_terms

if TYPE_CHECKING:
    from tailrace.config import Config


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """The slot of the highest term, as PostgreSQL shows it."""

    term: int
    read: bool
    """Whether a session reads it."""


class Vigil:
    """Decides, from what is noted again and again."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._free_since: float | None = None
        self._term = -1

    def asks(self, silent_s: float) -> bool:
        """Whether the leader has been silent for so long that PostgreSQL should be asked."""
        return silent_s >= self._after_s / 2

    def note(self, now: float, *, silent_s: float, slot: SlotSeen | None) -> bool:
        """Whether to take over. `slot`: None if PostgreSQL cannot be asked."""
        if slot is None or slot.read or not self.asks(silent_s):
            self._free_since = None
            return False
        if slot.term != self._term:
            self._term, self._free_since = slot.term, now
        if self._free_since is None:
            self._free_since = now
        return silent_s >= self._after_s and now - self._free_since >= self._after_s

    def reset(self) -> None:
        """Begin anew, after a takeover that did not succeed."""
        self._free_since = None


def see_slot(config: Config) -> SlotSeen | None:
    """The slot of the highest term; None if PostgreSQL cannot be asked, or has none."""
    dsn, timeout_s = config.source.dsn.get_secret_value(), config.capture.connect_timeout_s
    try:
        with connect(dsn, application_name="tailrace follow", connect_timeout_s=timeout_s) as sql:
            terms = read_terms(sql, config.source.slot)
            if not terms:
                return None
            highest = max(terms)
            return SlotSeen(highest, read_reader(sql, terms[highest].name) is not None)
    except TailraceError:
        return None
