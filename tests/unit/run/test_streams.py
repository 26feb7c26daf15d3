"""Streams are created when the system starts; a server that is down is retried."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from tailrace.backoff import Backoff
from tailrace.config import Config, Pipeline
from tailrace.errors import SinkRefusedError, SinkUnreachableError, TailraceError
from tailrace.run import streams


def config(**sinks: dict[str, Any]) -> Config:
    return Config.model_validate(
        {
            "source": {"dsn": "host=db"},
            "pipelines": {name: {"shape": "plain", "sink": sink} for name, sink in sinks.items()},
        }
    )


class Creation:
    """Creates streams; the first attempts of a pipeline fail."""

    def __init__(self, **failures: list[TailraceError]) -> None:
        self.failures = failures
        self.attempts: list[str] = []

    def __call__(self, name: str, _pipeline: Pipeline) -> None:
        self.attempts.append(name)
        if self.failures.get(name):
            raise self.failures[name].pop(0)


def run(creation: Creation, settings: Config, stop: threading.Event | None = None) -> None:
    streams.run(
        settings,
        stop or threading.Event(),
        create=creation,
        backoff=lambda: Backoff(first_s=0.001, max_s=0.001),
    )


def test_every_pipeline_with_a_nats_sink() -> None:
    creation = Creation()
    kafka = {"type": "kafka", "bootstrap": "localhost:9092"}
    run(creation, config(a={"type": "nats"}, b=kafka, c={"type": "nats"}))
    assert creation.attempts == ["a", "c"]


@pytest.mark.parametrize("error", [SinkUnreachableError("down"), SinkRefusedError("no rights")])
def test_a_failure_is_retried_and_logged(error: TailraceError) -> None:
    """GIVEN a server that is down WHEN it is back THEN the missing streams are created, and those
    of the other pipelines are not created again."""
    creation = Creation(a=[error, error])
    with capture_logs() as events:
        run(creation, config(a={"type": "nats"}, b={"type": "nats"}))
    assert creation.attempts == ["a", "b", "a", "a"]
    assert [(each["event"], each["pipeline"], each["code"]) for each in events] == [
        ("streams.not_created", "a", error.code),
        ("streams.not_created", "a", error.code),
    ]


def test_a_stop_ends_the_retries() -> None:
    stop = threading.Event()
    creation = Creation(a=[SinkUnreachableError("down")] * 1000)

    def create(name: str, pipeline: Pipeline) -> None:
        stop.set()
        creation(name, pipeline)

    streams.run(config(a={"type": "nats"}), stop, create=create)
    assert creation.attempts == ["a"]
