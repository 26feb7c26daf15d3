"""The HTTP server and the services: neither needs the other."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import httpx
import pytest
import uvicorn
from starlette.routing import Route

from tailrace.backoff import Backoff
from tailrace.config import Http
from tailrace.errors import StorageError
from tailrace.observe.endpoints import application, reply, settings
from tailrace.observe.hosts import AllowedHosts
from tailrace.run.services import Services
from tailrace.run.serving import ServeProcess
from tailrace.testing.process import free_port
from tests import http
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


async def health(_request: Request) -> Response:
    return reply({"status": "ok"})


def endpoints() -> Starlette:
    return application([Route("/health", health)], {}, AllowedHosts("127.0.0.1"))


class Site:
    """A process with one service, run in a thread."""

    def __init__(self, port: int, create: Callable[[], Starlette] = endpoints) -> None:
        self.port = port
        self.service_runs = threading.Event()
        services = Services()
        services.add("service", self._serve)
        self.process = ServeProcess(
            Http(port=port), services, create,
            backoff=lambda: Backoff(first_s=0.01, max_s=0.01),
        )  # fmt: skip
        self.thread = threading.Thread(target=self.process.work)

    def _serve(self, stop: threading.Event) -> None:
        self.service_runs.set()
        stop.wait()
        self.service_runs.clear()

    def answers(self) -> bool:
        try:
            return http.get(f"http://127.0.0.1:{self.port}/health").status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture
def start() -> Iterator[Callable[[Site], Site]]:
    started: list[Site] = []

    def start(site: Site) -> Site:
        started.append(site)
        site.thread.start()
        return site

    yield start
    for site in started:
        site.process.stop()
        site.thread.join(60)
        assert not site.thread.is_alive()
        wait_for(lambda: not site.service_runs.is_set(), "the service to end")  # noqa: B023


def test_services_run_while_the_port_is_in_use(start: Callable[[Site], Site]) -> None:
    """GIVEN a port in use WHEN the process starts THEN services run, and HTTP when it is free."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        site = start(Site(taken.getsockname()[1]))
        assert site.service_runs.wait(60)
        assert site.thread.is_alive()
    wait_for(site.answers, "HTTP starts when the port is free")


def test_endpoints_that_cannot_be_created_are_tried_again(start: Callable[[Site], Site]) -> None:
    attempts: list[int] = []

    def create() -> Starlette:
        attempts.append(1)
        if len(attempts) < 3:
            raise StorageError("no token")
        return endpoints()

    site = start(Site(free_port(), create))
    wait_for(site.answers)
    assert len(attempts) == 3


def test_without_a_port_only_services_run(start: Callable[[Site], Site]) -> None:
    site = start(Site(0))
    assert site.service_runs.wait(60)
    assert site.thread.is_alive()


def test_a_signal_that_uvicorn_takes_is_a_stop() -> None:
    """GIVEN a server that runs WHEN uvicorn gets the signal THEN open pages end their streams: they
    would keep the process for the whole grace period."""
    process = ServeProcess(Http(port=0), Services(), endpoints)
    assert not process.stopping
    process._server = uvicorn.Server(settings(endpoints()))
    assert not process.stopping
    process._server.should_exit = True
    assert process.stopping
