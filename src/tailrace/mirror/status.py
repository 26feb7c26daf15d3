"""Progress figures of a mirror."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime


class Phase(enum.Enum):
    """What a mirror is doing."""

    STARTING = "starting"
    BOOTSTRAP = "loading"
    FOLLOWING = "following"
    WAITING = "waiting"


def _ignore(_status: Status, _text: str) -> None:
    return None


@dataclass(slots=True, kw_only=True)
class Status:
    """Figures of one table. `on_event` is called with one sentence per event."""

    table: str
    on_event: Callable[[Status, str], None] = field(default=_ignore, repr=False)
    phase: Phase = Phase.STARTING
    rows: int = 0
    """Rows loaded from the last snapshot."""
    snapshots: int = 0
    """Snapshots loaded by this process."""
    changes: int = 0
    """Changes applied by this process."""
    pending: int = 0
    """Messages in the stream that are not applied yet."""
    committed_at: datetime | None = None
    """When the last applied change was committed at the source."""
    applied_at: datetime | None = None
    """When it was applied."""

    def report(self, text: str, phase: Phase | None = None) -> None:
        """Report an event, and the phase that it starts."""
        self.phase = phase or self.phase
        self.on_event(self, text)

    def applied(
        self, count: int, committed_at: datetime | None, pending: int, now: datetime
    ) -> None:
        """Count changes that the target has committed."""
        self.changes += count
        self.pending = pending
        if committed_at is not None:
            self.committed_at, self.applied_at = committed_at, now

    def lag_s(self, now: datetime) -> float | None:
        """How far the target is behind the source; None before the first change.

        While messages are pending: the age of the last applied commit. Once all are applied: how
        long the last change took from its commit to the target.
        """
        if self.committed_at is None or self.applied_at is None:
            return None
        until = now if self.pending else self.applied_at
        return max((until - self.committed_at).total_seconds(), 0.0)
