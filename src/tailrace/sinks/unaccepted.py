"""The messages of a flush that were not accepted, and those that they hold back.

After a message that was not accepted, a sink sends no later message of its groups
(`tailrace.sinks.groups`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.sinks.blocked import BlockedGroups
from tailrace.sinks.outcome import Failure, Outcome, Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.sinks.groups import Groups

UNSENT = Outcome(
    verdict=Verdict.UNSENT,
    code="UNSENT",
    reason="an earlier message of its key was not accepted",
    attempts=0,
)


class Unaccepted:
    """Messages that were not accepted. Later ones of their groups are not sent."""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self._blocked = BlockedGroups()

    def __bool__(self) -> bool:
        """Whether any is not reported yet."""
        return bool(self._failures)

    @property
    def blocks(self) -> bool:
        """Whether any group is blocked."""
        return bool(self._blocked)

    def add(self, message: pa.RecordBatch, groups: Groups, outcome: Outcome) -> None:
        """Add a message, which is one row, with its groups."""
        self._failures.append(Failure(message, outcome))
        self._blocked.add(groups)

    def hold_back(self, rows: pa.RecordBatch, groups: Groups) -> tuple[pa.RecordBatch, Groups, int]:
        """The messages that may be sent, their groups, and how many of all are decided.

        Those that are decided and may not be sent are not accepted. Ask about the others again when
        the first ones have been sent.
        """
        count = rows.num_rows
        if not self._blocked:
            return rows, groups, count
        waiting = self.waiting(rows, groups, in_steps=True)
        decided = len(waiting)
        if decided == count and not waiting.any():
            return rows, groups, count
        ready = np.flatnonzero(~waiting)
        return rows.take(pa.array(ready)), groups.take(ready), decided

    def waiting(
        self, rows: pa.RecordBatch, groups: Groups, *, in_steps: bool = False
    ) -> NDArray[np.bool_]:
        """Which messages may not be sent, and are not accepted.

        With `in_steps` only for those that are decided, as in `hold_back`.
        """
        waiting = self._blocked.hold_back(groups, in_steps=in_steps)
        self._failures += [
            Failure(rows.slice(row, 1), UNSENT) for row in np.flatnonzero(waiting).tolist()
        ]
        return waiting

    def failures(self) -> tuple[Failure, ...]:
        """In order of position."""
        return tuple(sorted(self._failures, key=_place))

    def report(self) -> tuple[Failure, ...]:
        """The same, once. Their groups stay blocked."""
        failures, self._failures = self.failures(), []
        return failures


def _place(failure: Failure) -> tuple[int, int]:
    message = failure.message
    return message["lsn"][0].as_py(), message["ordinal"][0].as_py()
