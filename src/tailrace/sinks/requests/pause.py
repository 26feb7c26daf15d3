"""The pauses that a destination asks for, because it receives more than it can take.

A pause is always waited for, up to an hour: a request before its end would be refused, and may make
it longer. If a destination asks for pauses only, and accepts nothing, for longer than a message is
retried, the pipeline ends its query after a pause, and is `retrying` with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import SinkUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.sinks.outcome import Outcome

_UNSAID_S = 1.0
"""How long to wait at most if the destination does not say."""
_LONGEST_S = 3600.0


class Pause:
    """When requests may be sent again. Threads that send may begin a pause."""

    def __init__(
        self, *, max_elapsed_s: float, clock: Callable[[], float], chance: Callable[[], float]
    ) -> None:
        self._max_elapsed_s = max_elapsed_s
        self._clock, self._chance = clock, chance
        self.until_s = 0.0
        self._since_s: float | None = None
        """Since when the destination asks to wait and accepts nothing."""
        self._reason = ""
        """Why the destination is called unreachable after this pause."""

    @property
    def active(self) -> bool:
        """Whether to send nothing now."""
        return self._clock() < self.until_s

    def begin(self, outcome: Outcome) -> None:
        """Send nothing for as long as the destination asks."""
        asked_s = outcome.retry_after_s or _UNSAID_S * self._chance()
        self.until_s = max(self.until_s, self._clock() + min(asked_s, _LONGEST_S))

    def throttled(self, outcome: Outcome) -> None:
        """Note an answer that asks to wait."""
        now = self._clock()
        if self._since_s is None:
            self._since_s = now
        if now - self._since_s > self._max_elapsed_s:
            self._reason = outcome.reason

    def accepted(self) -> None:
        """Note that the destination has accepted something."""
        self._since_s, self._reason = None, ""

    def check(self) -> None:
        """Raise if the destination has asked for pauses, and for nothing else, for too long."""
        if self._reason:
            raise SinkUnreachableError(f"the destination accepts no more messages: {self._reason}")
