"""The listener for requests: as many at a time as it can serve, the others are refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import nats

from tailrace.jetstream import requests as module
from tailrace.jetstream.requests import Listener, Reply, refusal
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    import pytest

    from tailrace.errors import TailraceError
    from tailrace.sinks.nats.settings import NatsSink


class Slow:
    """Answers when it is told to."""

    subjects = ("slow.>",)

    def __init__(self) -> None:
        self.asked = 0
        self.go = threading.Event()

    async def answer(self, subject: str, _request: bytes) -> Reply:
        if subject == "slow.ready":
            return Reply(b"")
        self.asked += 1
        while not self.go.is_set():
            await asyncio.sleep(0.01)
        return Reply(b"done")

    def refusal(self, error: TailraceError) -> Reply:
        return refusal(str(error), code=error.code, status=503)


def test_too_many_requests_are_refused(settings: NatsSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN requests that take long WHEN there are more than the listener serves at a time
    THEN it refuses the others at once, and still answers the first ones."""
    monkeypatch.setattr(module, "_MAX_REQUESTS", 3)
    responder, stopping = Slow(), threading.Event()
    listener = Listener(settings, responder, stopping)
    thread = threading.Thread(target=listener.run)
    thread.start()

    async def ask() -> list[bytes]:
        client = await nats.connect(settings.url.get_secret_value())
        try:
            while True:
                with contextlib.suppress(nats.errors.NoRespondersError):
                    await client.request("slow.ready", b"", timeout=LONG_S)
                    break
                await asyncio.sleep(0.05)
            sent = [client.request(f"slow.{n}", b"", timeout=LONG_S) for n in range(5)]
            asked = [asyncio.ensure_future(one) for one in sent]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            responder.go.set()
            return [(await one).data for one in asked]
        finally:
            await client.close()

    try:
        replies = asyncio.run(ask())
    finally:
        stopping.set()
        thread.join()
    assert replies[:3] == [b"done"] * 3
    assert all(b"too many requests" in reply for reply in replies[3:])
    wait_for(lambda: responder.asked == 3, "three requests to be served")
