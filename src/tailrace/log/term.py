"""Terms: the upper 32 bits of an epoch. A takeover by another machine begins a new one."""

from __future__ import annotations

TERM_BITS = 32


def term_of(epoch: int) -> int:
    """The term of an epoch.

    >>> term_of(7), term_of((2 << 32) + 7)
    (0, 2)
    """
    return epoch >> TERM_BITS
