"""What answers of a cluster mean."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tailrace.errors import DivergedError, SinkError, SinkFullError, SinkRefusedError
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.search.answers import outcomes_of
from tailrace.sinks.search.bulk import Bulk
from tailrace.sinks.search.client import Answer

CONFLICT = "version_conflict_engine_exception"


def bulk(*rows: int) -> Bulk:
    return Bulk(b"", np.array(rows))


def item(status: int, kind: str = "", reason: str = "", **more: Any) -> dict[str, Any]:
    error = {"error": {"type": kind, "reason": reason, "index": "i", **more}} if kind else {}
    return {"index": {"status": status, **error}}


def answer(*items: dict[str, Any]) -> Answer:
    return Answer(200, json.dumps({"errors": True, "items": items}).encode())


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (item(200), None),
        (item(201), None),
        (item(404), None),
        (item(409, CONFLICT, "current version [9] is higher than the one provided [8]"), None),
        (item(400, "mapper_parsing_exception", "no number"), Verdict.REFUSED),
        (item(429, "rejected_execution_exception", "queue"), Verdict.THROTTLED),
        (item(503, "unavailable_shards_exception", "shard"), Verdict.RETRY),
        (item(500, "exception", "bug"), Verdict.RETRY),
    ],
)
def test_results_of_items(result: dict[str, Any], verdict: Verdict | None) -> None:
    found = outcomes_of(answer(item(200), result), bulk(4, 7), generation=0)
    assert {row: outcome.verdict for row, outcome in found.items()} == (
        {7: verdict} if verdict else {}
    )


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (item(429, "cluster_block_exception", "disk usage exceeded flood-stage"), SinkFullError),
        (item(403, "cluster_block_exception", "read-only / allow delete (api)"), SinkFullError),
        (item(403, "security_exception", "no permissions"), SinkRefusedError),
        (item(404, "index_not_found_exception", "no such index"), SinkRefusedError),
        (item(400, "index_closed_exception", "closed"), SinkRefusedError),
        (item(409, CONFLICT, f"current version [{1 << 60}] is higher"), DivergedError),
    ],
)
def test_results_that_concern_the_whole_index(
    result: dict[str, Any], error: type[SinkError]
) -> None:
    with pytest.raises(error) as caught:
        outcomes_of(answer(result), bulk(0), generation=0)
    assert caught.value.hint


def test_a_message_with_two_items_fails_if_one_of_them_does() -> None:
    items = [item(503, "a", "b"), item(200), item(400, "c", "d"), item(503, "a", "b")]
    found = outcomes_of(answer(*items), bulk(0, 0, 1, 1), generation=0)
    verdicts = {row: outcome.verdict for row, outcome in found.items()}
    assert verdicts == {0: Verdict.RETRY, 1: Verdict.REFUSED}


def test_the_reason_has_its_causes_and_not_the_request() -> None:
    leak = 'bad token\n at [Source: (byte[])"POST /_bulk authorization: Basic abc"; line: 1]'
    cause = {"type": "parse_exception", "reason": leak}
    refused = item(400, "mapper_parsing_exception", "failed to parse", caused_by=cause)
    [outcome] = outcomes_of(answer(refused), bulk(0), generation=0).values()
    assert outcome.response == (
        "mapper_parsing_exception: failed to parse <- parse_exception: bad token"
    )
    assert outcome.code == "HTTP_400"


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (400, Verdict.REFUSED),
        (413, Verdict.REFUSED),
        (429, Verdict.THROTTLED),
        (502, Verdict.RETRY),
    ],
)
def test_an_answer_for_all_items(status: int, verdict: Verdict) -> None:
    found = outcomes_of(Answer(status, b"no", "3"), bulk(0, 1), generation=0)
    assert [outcome.verdict for outcome in found.values()] == [verdict] * 2
    assert found[0] is found[1]  # the engine sends them one by one
    assert bool(found[0].hint) == (status == 413)
    with pytest.raises(SinkRefusedError, match="no bulk API"):
        outcomes_of(Answer(404, b""), bulk(0), generation=0)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"errors":true,"items":[]}'])
def test_an_answer_that_is_no_answer_is_tried_again(body: bytes) -> None:
    [outcome] = outcomes_of(Answer(200, body), bulk(0), generation=0).values()
    assert (outcome.verdict, outcome.code) == (Verdict.RETRY, "UNREADABLE")
