"""Errors of nats-py as errors of Tailrace."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import nats.errors
import nats.js.errors
import orjson
import pytest

from tailrace.client.connection import (
    Connection,
    MissingStreamError,
    _connect_error,
    translate_errors,
)
from tailrace.errors import SinkRefusedError, SinkUnreachableError


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (nats.errors.NoRespondersError(), SinkUnreachableError, "JetStream does not answer"),
        (nats.js.errors.ServiceUnavailableError(), SinkUnreachableError, "does not answer"),
        (nats.js.errors.BadRequestError(description="no"), SinkRefusedError, "cannot read: no"),
        (nats.errors.ConnectionClosedError(), SinkUnreachableError, "cannot read"),
        (OSError("refused"), SinkUnreachableError, "cannot read: refused"),
        (TimeoutError(), SinkUnreachableError, "cannot read: TimeoutError"),
    ],
)
def test_errors_are_translated(error: Exception, expected: type[Exception], text: str) -> None:
    with pytest.raises(expected, match=text), translate_errors("read"):
        raise error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nats: 'Authorization Violation'", SinkRefusedError),
        ("no such file: user credentials", SinkRefusedError),
        ("Connection refused", SinkUnreachableError),
    ],
)
def test_refused_login_is_recognized_by_its_text(text: str, expected: type[Exception]) -> None:
    assert isinstance(_connect_error(nats.errors.Error(text)), expected)


def connection(answer: dict[str, Any]) -> Connection:
    async def request(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(data=orjson.dumps(answer))

    client: Any = SimpleNamespace(request=request, jetstream=lambda **_: None)
    return Connection(client)


def test_missing_stream_and_missing_message() -> None:
    missing = connection({"error": {"code": 404, "description": "not found"}})
    with pytest.raises(MissingStreamError, match="no stream 'CDC'"):
        asyncio.run(missing.stream_info("CDC"))
    assert asyncio.run(missing.message("CDC", 1)) is None


def test_other_errors_of_jetstream_are_refusals() -> None:
    refused = connection({"error": {"code": 500, "description": "no quorum"}})
    with pytest.raises(SinkRefusedError, match="no quorum"):
        asyncio.run(refused.message("CDC", 1))


def test_stored_message_is_decoded() -> None:
    at = "2026-01-02T03:04:05.123456789Z"
    stored = {"seq": 7, "hdrs": "TkFUUy8xLjANCkE6IDENCg0K", "data": "eA==", "time": at}
    message = asyncio.run(connection({"message": stored}).message("CDC", 1))
    assert message is not None
    assert (message.sequence, message.headers, message.data) == (7, {"A": "1"}, b"x")
    assert message.time == datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)


def test_interruption_calls_every_listener() -> None:
    interrupted = connection({})
    calls: list[str] = []
    interrupted.on_interrupt |= {lambda: calls.append("a"), lambda: calls.append("b")}
    interrupted.interrupted()
    assert sorted(calls) == ["a", "b"]
