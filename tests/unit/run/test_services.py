"""Services fail and restart by themselves, without the others and without HTTP."""

from __future__ import annotations

import threading

import structlog

from tailrace.backoff import Backoff
from tailrace.run.services import Services
from tests.waiting import wait_for

STOP_S = 60.0


def at_once() -> Backoff:
    return Backoff(first_s=0.001, max_s=0.001)


def slowly() -> Backoff:
    return Backoff(first_s=3600.0, max_s=3600.0)


def test_a_service_that_fails_is_restarted() -> None:
    """GIVEN two services WHEN one fails twice THEN it runs again; the other is not touched."""
    attempts: list[str] = []
    running, untouched = threading.Event(), threading.Event()

    def failing(stop: threading.Event) -> None:
        attempts.append("failing")
        if attempts.count("failing") < 3:
            raise RuntimeError("once more")
        running.set()
        stop.wait()

    def healthy(stop: threading.Event) -> None:
        attempts.append("healthy")
        untouched.set()
        stop.wait()

    services = Services(backoff=at_once)
    services.add("failing", failing)
    services.add("healthy", healthy)
    services.start()
    assert running.wait(STOP_S)
    assert untouched.wait(STOP_S)
    services.stop(STOP_S)
    assert attempts.count("healthy") == 1
    assert services.failing() == []


def test_a_failed_service_is_named_until_its_restart() -> None:
    def broken(_stop: threading.Event) -> None:
        raise RuntimeError("no")

    services = Services(backoff=slowly)
    services.add("broken", broken)
    services.add("idle", lambda stop: None)
    services.start()
    wait_for(lambda: services.failing() == ["broken"])
    # The delay does not hold up a stop.
    services.stop(STOP_S)


def test_an_error_is_logged_with_the_service() -> None:
    def broken(stop: threading.Event) -> None:
        stop.set()
        raise RuntimeError("the reason")

    with structlog.testing.capture_logs() as lines:
        services = Services(backoff=at_once)
        services.add("broken", broken)
        services.start()
        services.stop(STOP_S)
    assert [(line["event"], line["service"]) for line in lines] == [
        ("serve.service_failed", "broken")
    ]
