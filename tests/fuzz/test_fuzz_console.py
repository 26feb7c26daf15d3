"""Requests to the console and to `/api/v1`, mutated: any answer but a failure of the server."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.console.catalog import ACTIONS, PAGES
from tests.fuzz.counting import TIMEOUT_S, fuzz
from tests.unit.console.house import CHANGE, TOKEN, House, Visitor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(TIMEOUT_S)]

_METHODS = ("GET", "POST", "HEAD", "PUT", "OPTIONS")
_OWN = ("/tables", "/doctor")
"""They wait for PostgreSQL."""


_LONG = "9" * 5000
"""More digits than `int` reads."""
_PIPELINES = {
    "shop": {"sink": {"type": "nats", "url": "nats://127.0.0.1:1"}},
    "work": {"encoding": "json", "sink": {"type": "pull"}},
}
_ENDPOINTS = (
    "GET /health", "GET /health/checks", "GET /ready", "GET /status", "GET /metrics",
    "GET /streams/info?stream=CDC", "GET /backfills", "GET /parked/shop?limit=10&after=0&id=a1",
    "GET /parked/shop/1", "GET /parked/shop/orders", "GET /v1/pull/work/exhausted?limit=10&after=0",
    f"GET /parked/shop/{_LONG}", f"GET /parked/shop/{'9' * 20}", f"GET /parked/shop?limit={_LONG}",
    f"GET /v1/pull/work/exhausted?after={_LONG}", f"GET /console/parked/shop/{_LONG}",
    "GET /console/live?page=//[", "GET /console/live?page=//a%E2%84%80b", "POST /shutdown",
    'POST /backfills\n\n{"pipeline": "shop", "table": "t", "where": "id > 1", "rate": 10}',
    "POST /backfills/fill-1/pause", 'POST /parked/shop/retry\n\n{"ids": ["a1"], "key": "a"}',
    'POST /parked/shop/drop\n\n{"all": true}',
    'POST /v1/pull/work/receive\n\n{"batch_size": 10, "wait_ms": 0, "visibility_ms": 1000}',
    'POST /v1/pull/work/ack\n\n{"ack_ids": ["42-1f"]}',
    'POST /v1/pull/work/nack\n\n{"ack_ids": ["42-1f"], "delay_ms": 10}',
    'POST /v1/pull/work/extend\n\n{"ack_ids": ["42-1f"], "visibility_ms": 1000}',
    'POST /v1/pull/work/retry\n\n{"numbers": [1, 99999999999999999999]}',
    'POST /v1/pull/work/drop\n\n{"all": true}',
)  # fmt: skip
"""The endpoints beside the console."""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "data", pipelines=_PIPELINES)
    made.healthy()
    made.park()
    stop = threading.Event()
    clerk = threading.Thread(target=made.clerks["work"].run, args=[stop])
    clerk.start()
    yield made
    stop.set()
    clerk.join()


def corpus(visitor: Visitor) -> list[bytes]:
    """Requests as lines: method, target, headers, an empty line, the body."""
    [session] = (f"cookie: {name}={value}" for name, value in visitor.cookies.items())
    csrf = visitor.csrf
    found = [*_ENDPOINTS]
    for page in PAGES:
        path = _filled(page.path)
        query = "&".join(f"{each.name}={each.default}" for each in page.query)
        if page.path not in _OWN:
            found += [f"GET /api/v1{path}?{query}", f"GET {_filled(page.address)}?{query}"]
            found.append(f"GET /console/live?page={_filled(page.address)}")
    for action in ACTIONS:
        path = _filled(action.path)
        fields = b'{"to": "earliest", "reason": "x", "all": true, "pipeline": "shop", "table": "t"}'
        found += [f"POST /api/v1{path}?dry_run=true\n\n{fields.decode()}"]
        found += [f"POST /api/v1{path}\n\n{{}}", f"GET /console{path}?to=now&all=true"]
        found += [f"POST /console{path}\n{session}\n\ncsrf={csrf}&to=now&reason=x&all=true"]
    reset = '{"group": "g", "to": "17", "topic": "orders:1"}'
    found += [
        f"POST /api/v1/broker/reset?dry_run=true\n\n{reset}",
        "GET /console/broker/reset?group=g&to=17&topic=orders:1",
        f"GET /console/messages?text=x\n{session}",
        f"GET /console/settings\n{session}",
        "GET /login?next=/",
        "POST /login\n\nname=ann&secret=x&next=/",
        "GET /static/console.js",
    ]
    return [each.encode() for each in found]


def _filled(path: str) -> str:
    path = path.replace("{pipeline}", "shop").replace("{number}", "1").replace("{id}", "fill-1")
    path = path.replace("{reader}", "shop")
    return path.replace("{message}", CHANGE)


def test_no_request_fails_the_server(house: House) -> None:
    """GIVEN requests of browsers and programs WHEN bytes of them are changed THEN the answer is a
    page, an order or a refusal, and never a 500."""
    operator = Visitor(house)
    operator.log_in()
    found = corpus(operator)
    for data in found:
        _answered(house, data)
    fuzz("requests of the console", found, lambda data: _answered(house, data), factor=0.15)


def _answered(house: House, data: bytes) -> bool:
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    method, _, target = first.partition(b" ")
    path, _, query = target.partition(b"?")
    name = method.decode("latin-1") if method.decode("latin-1") in _METHODS else "GET"
    if any(path.decode("latin-1").endswith(each) for each in _OWN):
        return False
    headers = [
        (key.strip().lower(), value.strip())
        for key, colon, value in (line.partition(b":") for line in lines)
        if colon and key.strip()
    ]
    headers += [(b"authorization", f"Bearer {TOKEN}".encode())] if not lines else []
    status = asyncio.run(
        _ask(house.application, name, path, query=query, headers=headers, body=body)
    )
    assert status != 500
    return status < 400


async def _ask(
    application: Any,
    method: str,
    path: bytes,
    *,
    query: bytes,
    headers: list[Any],
    body: bytes,
) -> int:
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http",
        "path": path.decode("utf-8", "replace") or "/", "raw_path": path, "query_string": query,
        "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 9090),
        "root_path": "",
    }  # fmt: skip
    status: list[int] = []
    sent = asyncio.Event()
    asked = 0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 1:
            return {"type": "http.request", "body": body, "more_body": False}
        await sent.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            status.append(message["status"])
            # The page of a stream is closed at once.
            sent.set()

    await application(scope, receive, send)
    return status[0]
