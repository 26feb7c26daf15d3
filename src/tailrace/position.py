"""The place of a change: log sequence numbers and positions.

`Lsn` is a byte address in PostgreSQL's write-ahead log. `Position` is Tailrace's total order: the
LSN of the commit, then the ordinal of the change inside its transaction. Row LSNs cannot replace
it: they are not ordered between transactions, and all rows of a COPY share one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_EVENT_ID = re.compile(r"([0-9a-f]{16})-([0-9]{1,20})")
MAX_LSN = (1 << 64) - 1


class Lsn(int):
    """An address in the write-ahead log, as an unsigned 64-bit integer.

    >>> Lsn.parse("16/B374D848")
    Lsn('16/B374D848')
    >>> int(Lsn.parse("0/10")) + 1
    17
    """

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        """Refuse what does not fit in 64 bits."""
        if not 0 <= value <= MAX_LSN:
            raise ValueError(f"an LSN must fit in 64 bits, got {value}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read PostgreSQL's own notation, `X/Y` in hexadecimal."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"must be an LSN such as 16/B374D848, got {text!r}")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn('{self}')"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A change's place in the total order: `(commit_lsn, ordinal)`.

    >>> Position(Lsn.parse("0/1A"), 3) > Position(Lsn.parse("0/1A"), 2)
    True
    >>> Position.parse("0/1A.3").event_id
    '000000000000001a-3'
    """

    lsn: Lsn
    ordinal: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `X/Y` or `X/Y.ordinal`."""
        lsn, dot, ordinal = text.partition(".")
        if dot and not ordinal.isdecimal():
            raise ValueError(
                f"must be a position such as 16/B374D848 or 16/B374D848.3, got {text!r}"
            )
        return cls(Lsn.parse(lsn), int(ordinal or 0))

    @classmethod
    def parse_event_id(cls, text: str) -> Self:
        """Read the id of a change.

        >>> Position.parse_event_id("00000000016b3748-2")
        Position(lsn=Lsn('0/16B3748'), ordinal=2)
        """
        match = _EVENT_ID.fullmatch(text)
        if match is None:
            raise ValueError(f"must be the id of a change such as 00000000016b3748-0, got {text!r}")
        return cls(Lsn(int(match[1], 16)), int(match[2]))

    @property
    def event_id(self) -> str:
        """The permanent id of the change, for deduplication."""
        return f"{self.lsn:016x}-{self.ordinal}"

    def __str__(self) -> str:
        return f"{self.lsn}.{self.ordinal}"


ORIGIN = Position(Lsn(0), 0)
"""Before every change."""
READS = 1 << 62
"""Ordinals from here on are rows of a backfill, which follow the changes of a transaction."""
PAGE_BITS = 36
"""Such an ordinal has the page's number above these bits, and the row's number below them."""
RELEASED = 1 << (PAGE_BITS - 1)
"""With this bit, the ordinal is of a parked message that is delivered again after the page."""
