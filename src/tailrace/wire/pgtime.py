"""PostgreSQL's time on the wire: microseconds since 2000-01-01 UTC in 64 bits.

The integer is kept, because its range is wider than that of `datetime` and a message must be
written back unchanged. `to_datetime` converts it for display and for frames.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Self

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_EARLIEST = datetime.min.replace(tzinfo=UTC)
_LATEST = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class PgTime(int):
    """Microseconds since 2000-01-01 UTC.

    >>> PgTime(1_000_000).to_datetime().isoformat()
    '2000-01-01T00:00:01+00:00'
    """

    __slots__ = ()

    @classmethod
    def of(cls, when: datetime) -> Self:
        """The exact wire form of an aware `datetime`."""
        return cls((when - _EPOCH) // _MICROSECOND)

    def to_datetime(self) -> datetime:
        """The time in UTC; a time outside of `datetime`'s range becomes its minimum or maximum."""
        try:
            return _EPOCH + timedelta(microseconds=self)
        except OverflowError:
            return _EARLIEST if self < 0 else _LATEST

    def __repr__(self) -> str:
        return f"PgTime({int(self)})"
