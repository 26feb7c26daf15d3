from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import SinkFullError, SinkRefusedError, SinkUnreachableError, TailraceError
from tailrace.jetstream.stream import checked, compare
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
    return [(one.severity, one.finding) for one in found]


def test_a_good_stream_has_no_findings() -> None:
    assert findings() == []
    assert findings(max_age=0) == []
    assert findings(metadata=None) == []
    assert findings(discard="old") == []


@pytest.mark.parametrize(
    ("changed", "severity", "said"),
    [
        ({"no_ack": True}, "error", "does not acknowledge"),
        ({"sealed": True}, "error", "takes no messages"),
        ({"mirror": {"name": "X"}}, "error", "takes no messages"),
        ({"retention": "interest"}, "error", "nobody has subscribed"),
        ({"storage": "memory"}, "error", "gone when its server restarts"),
        ({"storage": "memory", "num_replicas": 3}, "warning", "kept in memory"),
        ({"retention": "workqueue"}, "warning", "removes what was consumed"),
        ({"discard": "old", "max_bytes": 10}, "warning", "removes its oldest"),
        ({"discard": "old", "max_msgs": 10}, "warning", "removes its oldest"),
        ({"max_msgs_per_subject": 1}, "warning", "last messages of a subject"),
        ({"subject_transform": {"src": "a", "dest": "b"}}, "warning", "renames subjects"),
        ({"max_age": 10**9}, "warning", "for 1 s"),
        ({"duplicate_window": 10**9}, "warning", "for 1 s only"),
        ({"subjects": ["other.>"]}, "warning", "does not take cdc.*.*"),
        ({"metadata": {"tailrace.pipeline": "q"}}, "warning", "made for the pipeline q"),
    ],
)
def test_what_is_found(changed: dict[str, Any], severity: str, said: str) -> None:
    found = findings(**changed)
    assert found[0][0] == severity
    assert said in found[0][1]


def test_atomic_needs_a_stream_that_allows_it() -> None:
    settings = NatsSink(type="nats", atomic="transaction")
    assert [one.severity for one in compare(settings, GOOD, pipeline="p")] == ["error"]
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
def test_what_an_answer_means(error: dict[str, Any], kind: type[TailraceError] | None) -> None:
    if kind is None:
        assert checked({"a": 1}, "do it") == {"a": 1}
        return
    with pytest.raises(kind, match="cannot do it: x"):
        checked({"error": error}, "do it")
