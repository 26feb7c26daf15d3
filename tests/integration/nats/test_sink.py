"""The NATS sink: messages arrive unchanged and in order; an existing stream is not altered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import structlog
from pydantic import SecretStr

from tailrace.errors import SinkRefusedError
from tailrace.finding import Severity
from tailrace.jetstream.stream import inspect, stream_info
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane, Receipt
from tailrace.sinks.nats.sink import JetStream
from tests.integration.nats.streams import (
    altered,
    batch,
    expected,
    held,
    make_stream,
    opened,
)
from tests.unit.sinks.rows import payload

if TYPE_CHECKING:
    from tailrace.sinks.nats.settings import NatsSink


def test_messages_arrive_unchanged_and_in_order(settings: NatsSink) -> None:
    with opened(settings) as sink:
        for start in range(0, 9000, 3000):
            sink.write(batch(settings, range(start, start + 3000)))
        receipt = sink.flush()
    assert held(settings) == expected(settings, range(9000))
    assert receipt == Receipt(messages=9000, bytes=sum(len(payload(n)) for n in range(9000)))


def test_the_stream_is_created_as_configured(settings: NatsSink) -> None:
    settings = altered(settings, max_age_hours=2.0, max_bytes=10**8, max_messages=77, atomic=True)
    with opened(settings, name="orders"):
        pass
    config = stream_info(settings, settings.stream.name)["config"]
    assert config["subjects"] == list(settings.stream.subjects)
    assert (config["storage"], config["discard"], config["retention"]) == ("file", "new", "limits")
    assert config["max_age"] == 2 * 3600 * 10**9
    assert (config["max_bytes"], config["max_msgs"]) == (10**8, 77)
    assert config["duplicate_window"] == 120 * 10**9
    assert config["allow_atomic"]
    assert config["metadata"]["tailrace.pipeline"] == "orders"


def test_an_existing_stream_is_never_altered(settings: NatsSink) -> None:
    make_stream(settings, storage="file", max_age=60 * 10**9, duplicate_window=10**9)
    before = stream_info(settings, settings.stream.name)["config"]
    with structlog.testing.capture_logs() as logs, opened(settings):
        pass
    assert stream_info(settings, settings.stream.name)["config"] == before
    logged = [line["finding"] for line in logs if line["event"] == "nats.stream_warning"]
    assert len(logged) == 2
    assert "keeps messages for 60 s" in logged[0]
    assert "for 1 s only" in logged[1]
    with structlog.testing.capture_logs() as again, opened(settings):
        pass
    assert [line for line in again if line["event"] == "nats.stream_warning"] == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"storage": "memory"}, "is in memory"),
        ({"retention": "interest"}, "has no subscriber"),
        ({"no_ack": True}, "does not acknowledge"),
    ],
)
def test_a_stream_that_would_lose_messages_is_refused(
    settings: NatsSink, config: dict[str, Any], reason: str
) -> None:
    make_stream(settings, **config)
    with pytest.raises(SinkRefusedError, match=reason):
        JetStream(settings, Lane(pipeline="test")).open(ORIGIN)
    assert inspect(settings)[0].severity is Severity.ERROR


def test_inspecting(settings: NatsSink) -> None:
    assert [one.severity for one in inspect(settings)] == [Severity.INFO]
    with opened(settings):
        pass
    assert [one.severity for one in inspect(settings)] == [Severity.OK]
    gone = settings.model_copy(update={"url": SecretStr("nats://127.0.0.1:1")})
    (finding,) = inspect(gone)
    assert finding.severity is Severity.ERROR
    assert "127.0.0.1:1" in finding.finding
    assert finding.fix


def test_a_missing_stream_has_no_info(settings: NatsSink) -> None:
    with pytest.raises(SinkRefusedError, match="no stream"):
        stream_info(settings, "NOWHERE")
    with pytest.raises(SinkRefusedError, match="not a valid stream name"):
        stream_info(settings, "A 5\r\nPUB x")


def test_the_stream_of_another_pipeline_is_logged(settings: NatsSink) -> None:
    with opened(settings, name="first"):
        pass
    with structlog.testing.capture_logs() as logs, opened(settings, name="second"):
        pass
    assert "created for the pipeline first" in logs[0]["finding"]


def test_one_outstanding_message_keeps_order(settings: NatsSink) -> None:
    settings = settings.model_copy(update={"max_outstanding": 1})
    with opened(settings) as sink:
        sink.write(batch(settings, range(50)))
        sink.flush()
    assert held(settings) == expected(settings, range(50))
