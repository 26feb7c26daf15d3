"""The messages of a flush that were not accepted, and those that they hold back.

After a message that was not accepted, a sink sends no later message of its groups
(`tailrace.sinks.groups`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.sinks.outcome import Failure, Outcome, Verdict

if TYPE_CHECKING:
    from tailrace.sinks.groups import Groups

UNSENT = Outcome(
    verdict=Verdict.UNSENT,
    code="UNSENT",
    reason="an earlier message of its key was not accepted",
)


class Unaccepted:
    """Messages that were not accepted. Later ones of their groups are not sent."""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self._keys: set[int] = set()
        self._scopes: set[int] = set()
        """Tables with such a message."""
        self._whole_scopes: set[int] = set()
        """Tables of which nothing more is sent."""

    def add(self, message: pa.RecordBatch, groups: Groups, outcome: Outcome) -> None:
        """Add a message, which is one row, with its groups."""
        self._failures.append(Failure(message, outcome))
        scope = int(groups.scope[0])
        self._keys |= {int(groups.own[0]), int(groups.former[0])}
        self._scopes.add(scope)
        if groups.whole[0]:
            self._whole_scopes.add(scope)

    def hold_back(self, rows: pa.RecordBatch, groups: Groups) -> tuple[pa.RecordBatch, Groups]:
        """The messages that may be sent, and their groups. The others are not accepted."""
        if not self._failures:
            return rows, groups
        sent = []
        for row in range(rows.num_rows):
            if self._holds_back(groups, row):
                self.add(rows.slice(row, 1), groups.slice(row, 1), UNSENT)
            else:
                sent.append(row)
        chosen = np.array(sent, np.int64)
        return rows.take(pa.array(chosen)), groups.take(chosen)

    def _holds_back(self, groups: Groups, row: int) -> bool:
        scope = int(groups.scope[row])
        return (
            int(groups.own[row]) in self._keys
            or int(groups.former[row]) in self._keys
            or scope in self._whole_scopes
            or (bool(groups.whole[row]) and scope in self._scopes)
        )

    def failures(self) -> tuple[Failure, ...]:
        """In order of position."""
        return tuple(sorted(self._failures, key=_position))


def _position(failure: Failure) -> tuple[int, int]:
    message = failure.message
    return message.column("lsn")[0].as_py(), message.column("ordinal")[0].as_py()
