"""What a snapshot of PostgreSQL sees: `pg_current_snapshot()` and the rule that goes with it.

Commits become visible in another order than they stand in the write-ahead log: a transaction that
waits for a standby is in the log, and in no snapshot. So where rows of a snapshot meet the stream,
positions alone do not tell which of the two is newer; the change's transaction id does.
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
    """A snapshot's transactions, as PostgreSQL prints them: `xmin:xmax:xip,xip`.

    Numbers are PostgreSQL's 64-bit ones. The stream has the low 32 bits only; they stand for the
    number nearest to `xmax`, as everywhere in PostgreSQL.

    >>> seen = Visibility.parse("943:945:943")
    >>> seen.sees(np.array([942, 943, 944, 945], np.uint32)).tolist()
    [True, False, True, False]
    """

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()
    """Transactions from `xmin` on that were not over yet."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read PostgreSQL's own notation."""
        match = _TEXT.fullmatch(text)
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError(f"{text!r} is not a snapshot; PostgreSQL writes them as 943:945:943")
        running = tuple(int(each) for each in match[3].split(",") if each)
        return cls(int(match[1]), int(match[2]), running)

    def sees(self, xids: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which of these transactions, all of them committed, the snapshot's rows include."""
        # The distance in 32 bits, read as a signed number: both wrap around alike.
        ago = (np.uint32(self.xmax & 0xFFFFFFFF) - xids.astype(np.uint32)).astype(np.int32)
        full = np.int64(self.xmax) - ago
        return (full < self.xmax) & ~np.isin(full, np.array(self.running, np.int64))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"
