"""PostgreSQL's time on the wire: microseconds since 2000-01-01 UTC in 64 bits.

The integer is kept as it came, because it reaches far beyond what `datetime` can hold and a message
must be written back unchanged; people and frames get a `datetime` from it.
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
        """The wire's form of an aware `datetime`, exactly."""
        return cls((when - _EPOCH) // _MICROSECOND)

    def to_datetime(self) -> datetime:
        """The time in UTC; what lies outside of `datetime` becomes its first or last moment."""
        try:
            return _EPOCH + timedelta(microseconds=self)
        except OverflowError:
            return _EARLIEST if self < 0 else _LATEST

    def __repr__(self) -> str:
        return f"PgTime({int(self)})"
