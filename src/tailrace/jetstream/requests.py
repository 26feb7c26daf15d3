"""Requests over NATS: a listener that passes requests to a responder and sends its replies.

An error is a reply too, with the headers by which NATS clients recognise one: `Nats-Service-Error`
and `Nats-Service-Error-Code`. A responder may also stay silent, for clients that know no errors.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import nats.errors
import orjson
import structlog

from tailrace.backoff import Backoff
from tailrace.errors import SinkUnreachableError, TailraceError, UnexpectedError
from tailrace.jetstream.client import connected

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from tailrace.jetstream.settings import NatsServer

_POLL_S = 0.1
_FIRST_RETRY_S, _MAX_RETRY_S = 0.5, 2.0
_MAX_HEADER = 500
_MAX_REQUESTS = 1000
"""Requests that are answered at the same time. Further ones are refused."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request."""

    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def refusal(message: str, *, code: str, status: int, hint: str = "") -> Reply:
    """An error as a reply. `status` is as in HTTP: 400 for an invalid request, 404, 500."""
    content = {"error": message, "code": code, "hint": hint}
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in message).split())
    headers = {
        "Nats-Service-Error": line[:_MAX_HEADER],
        "Nats-Service-Error-Code": str(status),
    }
    return Reply(orjson.dumps(content), headers)


class Responder(Protocol):
    """Answers the requests of some subjects."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects to subscribe to."""

    async def answer(self, subject: str, request: bytes, /) -> Reply | None:
        """The reply to a request; None: no reply. Runs in the event loop and must not block it."""

    def refusal(self, error: TailraceError, /) -> Reply | None:
        """The reply for an error; None: no reply."""


class Listener:
    """Answers requests until it is stopped, and reconnects after every failure.

    Requests are answered concurrently: a slow one does not delay the next. A message without a
    reply subject is a request too.
    """

    def __init__(self, server: NatsServer, responder: Responder, stopping: threading.Event) -> None:
        self._server = server
        self._responder = responder
        self._stopping = stopping
        self._backoff = Backoff(first_s=_FIRST_RETRY_S, max_s=_MAX_RETRY_S)
        self._events = structlog.get_logger()

    def run(self) -> None:
        """Listen until stopped."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with connected(self._server) as client:
                    await self._listen(client)
            except TailraceError as error:
                retry_in_s = self._backoff.next_s()
                self._events.warning(
                    "requests.disconnected",
                    subjects=self._responder.subjects,
                    code=error.code,
                    reason=str(error),
                    retry_in_s=round(retry_in_s, 1),
                )
                await self._wait(retry_in_s)

    async def _listen(self, client: Client) -> None:
        tasks: set[asyncio.Task[Any]] = set()

        async def on_message(message: Msg) -> None:
            if len(tasks) >= _MAX_REQUESTS:
                busy = SinkUnreachableError("too many requests at the same time")
                await self._reply(client, message, self._responder.refusal(busy))
                return
            # Not awaited here: a slow answer would delay the following requests.
            task = asyncio.create_task(self._serve(client, message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        for subject in self._responder.subjects:
            await client.subscribe(subject, cb=on_message)
        await client.flush()
        self._backoff.running()
        self._events.info("requests.listening", subjects=self._responder.subjects)
        while not self._stopping.is_set() and not client.is_closed:
            await asyncio.sleep(_POLL_S)

    async def _serve(self, client: Client, message: Msg) -> None:
        try:
            reply = await self._responder.answer(message.subject, message.data)
        except Exception as error:
            # A bug in one answer is the reply to that request, and does not stop the listener.
            self._events.exception("requests.failed", subject=message.subject)
            reply = self._responder.refusal(UnexpectedError.wrap(error))
        await self._reply(client, message, reply)

    async def _reply(self, client: Client, message: Msg, reply: Reply | None) -> None:
        if not message.reply or reply is None:
            return
        try:
            await client.publish(message.reply, reply.data, headers=dict(reply.headers) or None)
        except nats.errors.Error as error:
            # The connection is gone; the client repeats its request.
            self._events.warning(
                "requests.reply_failed", subject=message.subject, reason=str(error)
            )

    async def _wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self._stopping.is_set() and loop.time() < until:
            await asyncio.sleep(min(_POLL_S, seconds))
