"""Server-sent events: the part of a page that changes, whenever it has changed.

The stream of a page ends with the process, with the session that opened it, and after a while by
itself: the browser then connects again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from tailrace.console.rendering import HEADERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a stream sends."""

    render: Callable[[], str]
    """The changing part of the page."""
    run: Callable[[Callable[[], str]], Awaitable[str]]
    """Calls it in a thread."""
    allowed: Callable[[], bool]
    """Whether the sender of the request may still see it."""
    version: Callable[[], object] | None = None
    """While this is equal, nothing has changed."""


class Live:
    """The open streams. `stopping` says whether the process ends."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._open = 0

    def stream(self, request: Request, content: Content) -> Response:
        """A stream of a page. Raises HTTPException if there are too many."""
        if self._open >= MAX_STREAMS:
            raise HTTPException(503, "too many open pages: this one is not refreshed")
        return StreamingResponse(
            self._events(request, content), media_type="text/event-stream", headers=HEADERS
        )

    async def _events(self, request: Request, content: Content) -> AsyncIterator[bytes]:
        self._open += 1
        try:
            async for event in self._changes(request, content):
                yield event
        finally:
            self._open -= 1

    async def _changes(self, request: Request, content: Content) -> AsyncIterator[bytes]:
        render = _unless_equal(content.render, content.version)
        sent, sent_at, end = b"", time.monotonic(), time.monotonic() + _LIFE_S
        yield b"retry: 3000\n\n"
        while time.monotonic() < end:
            text = await content.run(render)
            if not content.allowed():
                return
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if digest != sent:
                sent, sent_at = digest, time.monotonic()
                yield b"event: page\ndata: " + orjson.dumps(text) + b"\n\n"
            elif time.monotonic() - sent_at > _ALIVE_S:
                sent_at = time.monotonic()
                # Not a comment: scripts do not see those, and know so that the stream is alive.
                yield b"event: alive\ndata:\n\n"
            for _ in range(round(_EVERY_S / _POLL_S)):
                await asyncio.sleep(_POLL_S)
                if self._stopping() or await request.is_disconnected():
                    return
