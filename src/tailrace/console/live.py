"""Server-sent events: the part of a page that changes, whenever it has changed.

The stream of a page ends with the process, and after a while by itself: the browser connects again,
and its session is checked again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import TYPE_CHECKING

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from tailrace.console.rendering import HEADERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    Run = Callable[[Callable[[], str]], Awaitable[str]]

_EVERY_S, _POLL_S = 2.0, 0.25
_LIFE_S = 600.0
_ALIVE_S = 15.0
MAX_STREAMS = 64


def _unless_equal(
    render: Callable[[], str], version: Callable[[], object] | None
) -> Callable[[], str]:
    """Renders again only if the version is another one."""
    if version is None:
        return render
    known: object = None
    text = ""

    def rendered() -> str:
        nonlocal known, text
        if not text or version() != known:
            # Read first: what changes meanwhile is rendered the next time.
            known = version()
            text = render()
        return text

    return rendered


class Live:
    """The open streams. `stopping` says whether the process ends."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._open = 0

    def stream(
        self,
        request: Request,
        render: Callable[[], str],
        version: Callable[[], object] | None = None,
        *,
        run: Run = run_in_threadpool,
    ) -> Response:
        """A stream of what `render` returns; it is called when `version` returns something else.

        `run` calls it in a thread. Raises HTTPException if there are too many.
        """
        if self._open >= MAX_STREAMS:
            raise HTTPException(503, "too many open pages: this one is not refreshed")
        return StreamingResponse(
            self._events(request, _unless_equal(render, version), run),
            media_type="text/event-stream",
            headers=HEADERS,
        )

    async def _events(
        self, request: Request, render: Callable[[], str], run: Run
    ) -> AsyncIterator[bytes]:
        self._open += 1
        try:
            async for event in self._changes(request, render, run):
                yield event
        finally:
            self._open -= 1

    async def _changes(
        self, request: Request, render: Callable[[], str], run: Run
    ) -> AsyncIterator[bytes]:
        sent, sent_at, end = b"", time.monotonic(), time.monotonic() + _LIFE_S
        yield b"retry: 3000\n\n"
        while time.monotonic() < end:
            text = await run(render)
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if digest != sent:
                sent, sent_at = digest, time.monotonic()
                yield b"event: page\ndata: " + orjson.dumps(text) + b"\n\n"
            elif time.monotonic() - sent_at > _ALIVE_S:
                sent_at = time.monotonic()
                yield b": alive\n\n"
            for _ in range(round(_EVERY_S / _POLL_S)):
                await asyncio.sleep(_POLL_S)
                if self._stopping() or await request.is_disconnected():
                    return
