"""What the answer to a bulk request means for each of its messages.

| status of an item            | meaning                                                           |
|------------------------------|-------------------------------------------------------------------|
| 2xx; 404 of a delete         | accepted                                                          |
| 409, a version conflict      | accepted: this state or a newer one is already there              |
| 429                          | the cluster asks for fewer messages                               |
| 408, 5xx                     | try again                                                         |
| 401, 403, 404, 429 of blocks | an error: the index takes no message at all                       |
| other                        | refused: the mapping does not fit the document                    |
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace.errors import DivergedError, SinkFullError, SinkRefusedError
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.requests.statuses import EXCERPT_BYTES, outcome_of
from tailrace.sinks.search.client import refused_right
from tailrace.sinks.search.versions import generation_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace.sinks.search.bulk import Bulk
    from tailrace.sinks.search.client import Answer

RESULTS = "/_bulk?filter_path=errors,items.*.status,items.*.error"
"""The request. Of accepted items only the status is sent back."""
_CURRENT = re.compile(r"current version \[(\d+)\]")
_SOURCE = re.compile(r"\s*at \[Source: .*", re.DOTALL)
"""The end of a parser's error: some versions quote the request there, with its credentials."""


def outcomes_of(answer: Answer, bulk: Bulk, *, generation: int) -> Mapping[int, Outcome]:
    """Which messages were not accepted, and why."""
    count = len(bulk.rows)
    if answer.status != 200:
        return _of_request(answer, bulk)
    found = answer.json()
    if not isinstance(found, dict) or len(found.get("items", ())) != count:
        unreadable = Outcome(
            verdict=Verdict.RETRY, code="UNREADABLE", reason="the answer of the cluster is invalid"
        )
        return dict.fromkeys(bulk.rows.tolist(), unreadable)
    if not found["errors"]:
        return {}
    failed: dict[int, Outcome] = {}
    for row, item in zip(bulk.rows.tolist(), found["items"], strict=True):
        (result,) = item.values()
        outcome = _of_item(result, generation)
        # The worse of two items decides: a message that is refused is not sent again.
        if outcome is not None and (row not in failed or outcome.verdict is Verdict.REFUSED):
            failed[row] = outcome
    return failed


def _of_request(answer: Answer, bulk: Bulk) -> Mapping[int, Outcome]:
    if answer.status in (404, 405) or 300 <= answer.status < 400:
        raise SinkRefusedError(
            f"the address has no bulk API: it answers {answer.status}",
            hint="Check `url` of the sink, and its path.",
        )
    outcome = outcome_of(answer.status, retry_after=answer.retry_after, body=answer.body)
    assert outcome is not None
    if answer.status == 413:
        hint = "Lower batch_bytes, or raise http.max_content_length of the cluster."
        outcome = replace(outcome, hint=hint)
    return dict.fromkeys(bulk.rows.tolist(), outcome)


def _of_item(result: dict[str, Any], generation: int) -> Outcome | None:
    status, error = result["status"], result.get("error")
    if status < 300 or (status == 404 and error is None):
        return None
    error = error or {}
    kind, reason = str(error.get("type", "")), str(error.get("reason", ""))
    if status == 409 and kind.startswith("version_conflict"):
        _check_generation(error, reason, generation)
        return None
    _check_index(status, kind, error, reason)
    outcome = outcome_of(status)
    assert outcome is not None
    causes = [_SOURCE.sub("", each) for each in _reasons(error)]
    return replace(
        outcome,
        code=f"HTTP_{status}",
        reason=f"the cluster answers {status}: {kind}",
        response=" <- ".join(causes)[:EXCERPT_BYTES],
    )


def _check_index(status: int, kind: str, error: dict[str, Any], reason: str) -> None:
    """Raise if no message can be stored in the index."""
    index = error.get("index", "an index")
    if kind == "cluster_block_exception" and ("flood" in reason or "allow delete" in reason):
        raise SinkFullError(f"{index}: {reason}", hint="Free space on the disks of the cluster.")
    if status in (401, 403) or kind == "security_exception":
        raise refused_right(str(index), f"{kind}: {reason}")
    if status == 404 or kind in ("index_closed_exception", "validation_exception"):
        raise SinkRefusedError(
            f"{index}: {kind}: {reason}",
            hint="Create or open the index, or allow the cluster to create it.",
        )
    if "allowed in data streams" in reason:
        raise SinkRefusedError(
            f"{index} is a data stream: {reason}", hint="Set `mode: append`, or use an index."
        )


def _check_generation(error: dict[str, Any], reason: str, generation: int) -> None:
    """A version of a later generation was not written by this pipeline as it is."""
    match = _CURRENT.search(reason)
    if match is not None and generation_of(int(match[1])) > generation:
        raise DivergedError(
            f"{error.get('index', 'an index')} has documents of a later log: {reason}",
            hint="Two pipelines write to the index, or `histories` was deleted. Use a new index.",
        )


def _reasons(error: dict[str, Any]) -> Iterator[str]:
    """What failed, and why."""
    while error:
        yield f"{error.get('type', '')}: {error.get('reason', '')}"
        cause = error.get("caused_by")
        error = cause if isinstance(cause, dict) else {}
