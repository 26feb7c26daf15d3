from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import SinkFullError, SinkRefusedError, SinkUnreachableError, TailraceError
from tailrace.finding import Severity
from tailrace.jetstream.stream import checked, compare, ready
from tailrace.sinks.nats.settings import NatsSink

GOOD = {
    "name": "CDC",
    "subjects": ["cdc.>"],
    "retention": "limits",
    "storage": "file",
    "discard": "new",
    "num_replicas": 1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 24 * 3600 * 10**9,
    "max_msgs_per_subject": -1,
    "duplicate_window": 120 * 10**9,
    "metadata": {"tailrace.pipeline": "p"},
}


def findings(pipeline: str = "p", **changed: Any) -> list[tuple[str, str]]:
    settings = NatsSink(type="nats")
    found = list(compare(settings, GOOD | changed, pipeline=pipeline))
    assert all(one.fix for one in found)
    return [(one.severity.value, one.finding) for one in found]


def test_a_good_stream_has_no_findings() -> None:
    assert findings() == []
    assert findings(max_age=0) == []
    assert findings(metadata=None) == []
    assert findings(discard="old") == []


@pytest.mark.parametrize(
    ("changed", "severity", "text"),
    [
        ({"no_ack": True}, "error", "does not acknowledge"),
        ({"sealed": True}, "error", "accepts no messages"),
        ({"mirror": {"name": "X"}}, "error", "accepts no messages"),
        ({"retention": "interest"}, "error", "has no subscriber"),
        ({"storage": "memory"}, "error", "lost when its server restarts"),
        ({"storage": "memory", "num_replicas": 3}, "warning", "in memory"),
        ({"retention": "workqueue"}, "warning", "removes consumed messages"),
        ({"discard": "old", "max_bytes": 10}, "warning", "removes its oldest"),
        ({"discard": "old", "max_msgs": 10}, "warning", "removes its oldest"),
        ({"max_msgs_per_subject": 1}, "warning", "last messages of each subject"),
        ({"subject_transform": {"src": "a", "dest": "b"}}, "warning", "renames subjects"),
        ({"max_age": 10**9}, "warning", "for 1 s"),
        ({"duplicate_window": 10**9}, "warning", "for 1 s only"),
        ({"subjects": ["other.>"]}, "warning", "does not accept cdc.*.*"),
        ({"metadata": {"tailrace.pipeline": "q"}}, "warning", "created for the pipeline q"),
    ],
)
def test_each_setting_has_its_finding(changed: dict[str, Any], severity: str, text: str) -> None:
    found = findings(**changed)
    assert found[0][0] == severity
    assert text in found[0][1]


def test_atomic_needs_a_stream_that_allows_it() -> None:
    settings = NatsSink(type="nats", atomic="transaction")
    assert [one.severity for one in compare(settings, GOOD, pipeline="p")] == [Severity.ERROR]
    assert list(compare(settings, GOOD | {"allow_atomic": True}, pipeline="p")) == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 503, "err_code": 10039, "description": "x"}, SinkRefusedError),
        ({"code": 503, "err_code": 10008, "description": "x"}, SinkUnreachableError),
        ({"code": 500, "err_code": 10047, "description": "x"}, SinkFullError),
        ({"code": 400, "err_code": 10065, "description": "x"}, SinkRefusedError),
        ({}, None),
    ],
)
def test_error_codes_map_to_errors(error: dict[str, Any], kind: type[TailraceError] | None) -> None:
    if kind is None:
        assert checked({"a": 1}, "do it") == {"a": 1}
        return
    with pytest.raises(kind, match="cannot do it: x"):
        checked({"error": error}, "do it")


class Racing:
    """A connection: another pipeline creates the stream after this one has looked for it."""

    def __init__(self) -> None:
        self._created = False

    def request(self, subject: str, _body: object = None) -> dict[str, Any]:
        if ".STREAM.CREATE." in subject:
            self._created = True
            return {"error": {"code": 400, "err_code": 10058, "description": "already in use"}}
        if self._created:
            return {"config": GOOD | {"metadata": {"tailrace.pipeline": "other"}}}
        return {"error": {"code": 404, "err_code": 10059}}


def test_a_stream_that_another_pipeline_creates_at_the_same_time() -> None:
    found = ready(Racing(), NatsSink(type="nats"), pipeline="p")  # type: ignore[arg-type]
    assert found["config"]["metadata"] == {"tailrace.pipeline": "other"}
