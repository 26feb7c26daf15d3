"""What a response means for the messages of its request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from tailrace.sinks.requests.statuses import outcome_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.sinks.outcome import Outcome


def outcomes_of(
    status: int, *, count: int, array: bool, retry_after: str = "", body: bytes = b""
) -> Mapping[int, Outcome]:
    """Which of the messages of a request were not accepted, and why.

    A receiver may answer an array with 2xx and a result for each message, in order. An array may
    have a single message, for example when it is sent again:

    >>> found = outcomes_of(
    ...     207, count=2, array=True, body=b'{"results": [{"status": 200}, {"status": 422}]}'
    ... )
    >>> {row: outcome.code for row, outcome in found.items()}
    {1: 'HTTP_422'}
    """
    if 200 <= status < 300:
        return _outcomes_of_results(body, count) if array else {}
    outcome = outcome_of(status, retry_after=retry_after, body=body)
    return {} if outcome is None else dict.fromkeys(range(count), outcome)


def _outcomes_of_results(body: bytes, count: int) -> Mapping[int, Outcome]:
    if b'"results"' not in body:
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
