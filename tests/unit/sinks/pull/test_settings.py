from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.finding import Severity
from tailrace.sinks.pull.settings import PullSink
from tailrace.sinks.pull.sink_type import SINK

TOKEN = "0123456789abcdef"


def settings(**keys: Any) -> PullSink:
    return PullSink.model_validate({"type": "pull", **keys})


@pytest.mark.parametrize("token", ["short", "x" * 20 + "é", "x" * 20 + "\n"])
def test_weak_tokens_are_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValidationError, match="the token of 'a' must be at least 16") as raised:
        settings(tokens={"a": token})
    assert token not in str(raised.value)


def test_tokens_are_not_shown() -> None:
    assert TOKEN not in repr(settings(tokens={"a": TOKEN}))


def test_a_store_holds_the_largest_message() -> None:
    with pytest.raises(ValidationError, match="`max_bytes` must be at least `max_message_bytes`"):
        settings(max_bytes=1000)


def test_check_reports_missing_tokens() -> None:
    assert [each.severity for each in SINK.check(settings())] == [Severity.WARNING]
    assert [each.severity for each in SINK.check(settings(tokens={"a": TOKEN}))] == [Severity.OK]
