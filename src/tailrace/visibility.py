"""Which transactions a PostgreSQL snapshot sees: `pg_current_snapshot()` and its rule.

Commits become visible in another order than they are in the write-ahead log: a transaction that
waits for a synchronous standby is in the log and in no snapshot yet. So positions alone do not say
whether a row of a snapshot or a change of the stream is newer; the change's transaction id does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TEXT = re.compile(r"([0-9]+):([0-9]+):((?:[0-9]+(?:,[0-9]+)*)?)")


@dataclass(frozen=True, slots=True)
class Visibility:
    """The transactions of a snapshot, as PostgreSQL prints them: `xmin:xmax:xip,xip`.

    Ids are PostgreSQL's 64-bit ids. The stream carries the low 32 bits only: they mean the id
    nearest to `xmax`, by the same rule as in PostgreSQL.

    >>> seen = Visibility.parse("943:945:943")
    >>> seen.sees(np.array([942, 943, 944, 945], np.uint32)).tolist()
    [True, False, True, False]
    """

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()
    """Transactions from `xmin` on that were still running."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse PostgreSQL's text form."""
        match = _TEXT.fullmatch(text)
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError(f"must be a snapshot such as 943:945:943, got {text!r}")
        running = tuple(int(each) for each in match[3].split(",") if each)
        return cls(int(match[1]), int(match[2]), running)

    def sees(self, xids: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which of these committed transactions the snapshot sees."""
        # The 32-bit difference as a signed number, so that it is right across a wraparound.
        ago = (np.uint32(self.xmax & 0xFFFFFFFF) - xids.astype(np.uint32)).astype(np.int32)
        full = np.int64(self.xmax) - ago
        return (full < self.xmax) & ~np.isin(full, np.array(self.running, np.int64))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"
