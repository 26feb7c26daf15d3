"""How endpoints answer and listen, without a process behind them."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import httpx
import pytest
from starlette.routing import Route

from tailrace.errors import GapError, ProcessError
from tailrace.observe.endpoints import (
    MAX_BODY_BYTES,
    application,
    listening,
    read_body,
    reply,
    settings,
)
from tailrace.observe.hosts import AllowedHosts
from tailrace.position import Lsn

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response


async def gap(_request: Request) -> Response:
    raise GapError("the slot is ahead")


async def bug(_request: Request) -> Response:
    raise KeyError("x")


async def size(request: Request) -> Response:
    return reply(len(await read_body(request)))


def get(path: str, method: str = "GET", *, host: str = "test", body: bytes = b"") -> httpx.Response:
    routes = [Route("/gap", gap), Route("/bug", bug), Route("/size", size, methods=["POST"])]
    app = application(routes, {"GET /gap": "fails"}, AllowedHosts("127.0.0.1", ["test"]))

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, headers={"host": host}, content=body)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "error"), [("/gap", "GAP: the slot is ahead"), ("/bug", "UNEXPECTED: KeyError: 'x'")]
)
def test_an_error_is_json_with_its_code(path: str, error: str) -> None:
    answer = get(path)
    assert (answer.status_code, answer.json()) == (500, {"error": error})


@pytest.mark.parametrize(("path", "method", "code"), [("/x", "GET", 404), ("/gap", "POST", 405)])
def test_an_unknown_path_or_method_lists_the_endpoints(path: str, method: str, code: int) -> None:
    answer = get(path, method)
    assert answer.status_code == code
    assert answer.json()["endpoints"] == {"GET /gap": "fails"}


@pytest.mark.parametrize(("host", "code"), [("localhost:9090", 500), ("evil.example", 421)])
def test_requests_to_another_name_are_refused(host: str, code: int) -> None:
    answer = get("/gap", host=host)
    assert answer.status_code == code
    assert ("http.hosts" in answer.json()["error"]) == (code == 421)


@pytest.mark.parametrize(("more", "code"), [(0, 200), (1, 413)])
def test_a_body_has_a_limit(more: int, code: int) -> None:
    answer = get("/size", "POST", body=b" " * (MAX_BODY_BYTES + more))
    assert answer.status_code == code


def test_lsns_times_and_dataclasses_are_json() -> None:
    @dataclass
    class Shown:
        lsn: Lsn

    content = {"at": datetime(2026, 1, 2, tzinfo=UTC), "lsn": Lsn(0x1A), "nested": Shown(Lsn(2))}
    assert json.loads(bytes(reply(content).body)) == {
        "at": "2026-01-02T00:00:00+00:00",
        "lsn": "0/1A",
        "nested": {"lsn": "0/2"},
    }


def test_a_port_in_use_is_an_error_with_a_hint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ProcessError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            listening("127.0.0.1", port)
    assert "http.port" in caught.value.hint


def test_port_0_does_not_listen() -> None:
    with listening("127.0.0.1", 0) as off, pytest.raises(OSError, match="Invalid argument"):
        off.accept()


def test_endpoints_without_tls() -> None:
    app = application([], {}, AllowedHosts("127.0.0.1"))
    assert not settings(app).is_ssl


def test_endpoints_with_tls(certificates: Path) -> None:
    app = application([], {}, AllowedHosts("127.0.0.1"))
    server = certificates / "server"
    config = settings(app, certificate=server.with_suffix(".crt"), key=server.with_suffix(".key"))
    config.load()
    assert config.ssl is not None
    assert config.ssl.minimum_version >= ssl.TLSVersion.TLSv1_2
