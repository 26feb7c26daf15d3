"""How a mirror is doing."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Phase(enum.Enum):
    """What a mirror is at."""

    STARTING = "starting"
    BOOTSTRAP = "loading"
    FOLLOWING = "following"
    WAITING = "waiting"


def _silent(_status: Status, _words: str) -> None:
    return None


@dataclass(slots=True, kw_only=True)
class Status:
    """Figures of one table. `tell` is called with a sentence when something happens."""

    table: str
    tell: Callable[[Status, str], None] = field(default=_silent, repr=False)
    phase: Phase = Phase.STARTING
    rows: int = 0
    """Loaded from the snapshot that is being taken, or was."""
    snapshots: int = 0
    """Taken so far, by this process."""
    changes: int = 0
    """Applied so far, by this process."""
    pending: int = 0
    """Messages in the stream that are not applied yet."""
    committed_at: datetime | None = None
    """When the last change that is applied was committed at the source."""
    applied_at: datetime | None = None
    """When it was applied."""

    def say(self, words: str, phase: Phase | None = None) -> None:
        """Something has happened."""
        self.phase = phase or self.phase
        self.tell(self, words)

    def applied(self, count: int, committed_at: datetime | None, pending: int) -> None:
        """Changes are in the target."""
        self.changes += count
        self.pending = pending
        if committed_at is not None:
            self.committed_at, self.applied_at = committed_at, datetime.now(UTC)

    def lag_s(self, now: datetime) -> float | None:
        """How old the target is: the time to the last commit, while there is more to come.

        Once everything is applied, how long the last change took. None: no change so far.
        """
        if self.committed_at is None or self.applied_at is None:
            return None
        until = now if self.pending else self.applied_at
        return max((until - self.committed_at).total_seconds(), 0.0)
