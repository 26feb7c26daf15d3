"""What a status of HTTP means for a message."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tailrace.sinks.outcome import Outcome, Verdict

_RETRY = {408, 425}
_THROTTLED = {429}
EXCERPT_BYTES = 2000


def outcome_of(
    status: int, *, retry_after: str = "", body: bytes = b"", now: datetime | None = None
) -> Outcome | None:
    """The outcome of a request's messages; None if they were accepted.

    | status                  | verdict                                       |
    |-------------------------|-----------------------------------------------|
    | 2xx                     | accepted                                      |
    | 408, 425, 5xx           | try again                                     |
    | 429, 503 + Retry-After  | try again; the receiver wants fewer messages  |
    | other                   | refused                                       |
    """
    if 200 <= status < 300:
        return None
    delay_s = retry_after_s(retry_after, now or datetime.now(UTC))
    if status in _THROTTLED or (status == 503 and delay_s is not None):
        verdict = Verdict.THROTTLED
    elif status in _RETRY or status >= 500:
        verdict = Verdict.RETRY
    else:
        verdict = Verdict.REFUSED
    return Outcome(
        verdict=verdict,
        code=f"HTTP_{status}",
        reason=f"the receiver answers {status}",
        hint="It does not follow redirects." if 300 <= status < 400 else "",
        response=body[:EXCERPT_BYTES].decode("utf-8", "replace"),
        retry_after_s=delay_s,
    )


def retry_after_s(value: str, now: datetime) -> float | None:
    """The seconds that the header `Retry-After` asks for; None if it is missing or invalid.

    >>> now = datetime(2026, 1, 1, tzinfo=UTC)
    >>> retry_after_s("120", now), retry_after_s("Thu, 01 Jan 2026 00:00:30 GMT", now)
    (120.0, 30.0)
    >>> retry_after_s("soon", now), retry_after_s("Thu, 01 Jan 2026 00:00:30", now)
    (None, None)
    """
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        return None
    return max(0.0, (moment - now).total_seconds())
