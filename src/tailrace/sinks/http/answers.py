"""What a response means for the messages of its request."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import orjson

from tailrace.sinks.outcome import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

_RETRY = {408, 425}
_THROTTLED = {429}
EXCERPT_BYTES = 2000


def outcomes_of(
    status: int, *, count: int, retry_after: str = "", body: bytes = b""
) -> Mapping[int, Outcome]:
    """Which of the messages of a request were not accepted, and why.

    A receiver may answer an array with 2xx and a result for each message, in order:

    >>> found = outcomes_of(207, count=2, body=b'{"results": [{"status": 200}, {"status": 422}]}')
    >>> {row: outcome.code for row, outcome in found.items()}
    {1: 'HTTP_422'}
    """
    if 200 <= status < 300:
        return _outcomes_of_results(body, count)
    outcome = outcome_of(status, retry_after=retry_after, body=body)
    return {} if outcome is None else dict.fromkeys(range(count), outcome)


def _outcomes_of_results(body: bytes, count: int) -> Mapping[int, Outcome]:
    if count == 1 or b'"results"' not in body:
        return {}
    try:
        results = orjson.loads(body)["results"]
        statuses = [int(each["status"]) for each in results]
    except (ValueError, KeyError, TypeError):
        return {}
    if len(statuses) != count:
        return {}
    found = {}
    for row, (status, result) in enumerate(zip(statuses, results, strict=True)):
        after = str(result.get("retry_after", ""))
        outcome = outcome_of(status, retry_after=after, body=orjson.dumps(result))
        if outcome is not None:
            found[row] = outcome
    return found


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
