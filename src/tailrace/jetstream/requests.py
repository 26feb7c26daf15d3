"""Requests over NATS: a message comes in, an answer goes out, errors as replies too.

Nobody is left without an answer. A refusal is a reply like any other, with the headers by which
clients of NATS know one: `Nats-Service-Error` and `Nats-Service-Error-Code`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import nats.errors
import orjson
import structlog

from tailrace.errors import TailraceError, UnexpectedError
from tailrace.jetstream.client import connected

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from tailrace.jetstream.settings import NatsServer

_LOOK_S = 0.1
_AGAIN_S = 1.0
_HEADER_LENGTH = 500


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back."""

    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def refusal(message: str, *, code: str, status: int, hint: str = "") -> Reply:
    """A reply that says no. `status` is as in HTTP: 400 for what nobody could answer, 404."""
    content = {"error": message, "code": code, "hint": hint}
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in message).split())
    headers = {
        "Nats-Service-Error": line[:_HEADER_LENGTH],
        "Nats-Service-Error-Code": str(status),
    }
    return Reply(orjson.dumps(content), headers)


class Answers(Protocol):
    """What is asked and answered."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """Where requests come in."""

    async def answer(self, subject: str, said: bytes) -> Reply:
        """What to tell whoever asks. Runs in the event loop and must not block it."""

    def refusal(self, error: TailraceError) -> Reply:
        """How an error is told."""


class Listener:
    """Answers requests until told to stop, whatever happens to the server meanwhile.

    Nobody waits for the answer to somebody else. A message without a reply subject is a request,
    too.
    """

    def __init__(self, sink: NatsServer, answers: Answers, stopping: threading.Event) -> None:
        self._sink = sink
        self._answers = answers
        self._stopping = stopping
        self._events = structlog.get_logger()

    def run(self) -> None:
        """Listen."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with connected(self._sink) as client:
                    await self._listen(client)
            except TailraceError as error:
                self._events.warning(
                    "requests.deaf",
                    subjects=self._answers.subjects,
                    code=error.code,
                    reason=str(error),
                    again_in_s=_AGAIN_S,
                )
                await self._pause()

    async def _listen(self, client: Client) -> None:
        tasks: set[asyncio.Task[Any]] = set()

        async def on_message(message: Msg) -> None:
            # Not awaited here: one that waits would hold up those behind it.
            task = asyncio.create_task(self._serve(client, message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        for subject in self._answers.subjects:
            await client.subscribe(subject, cb=on_message)
        await client.flush()
        self._events.info("requests.listening", subjects=self._answers.subjects)
        while not self._stopping.is_set() and not client.is_closed:
            await asyncio.sleep(_LOOK_S)

    async def _serve(self, client: Client, message: Msg) -> None:
        try:
            reply = await self._answers.answer(message.subject, message.data)
        except Exception as error:
            # A fault of our own is told to whoever asked, and ends nothing else.
            self._events.exception("requests.broken", subject=message.subject)
            reply = self._answers.refusal(UnexpectedError.wrap(error))
        if not message.reply:
            return
        try:
            await client.publish(message.reply, reply.data, headers=dict(reply.headers) or None)
        except nats.errors.Error as error:
            # Whoever asked is not there any more, or asks again.
            self._events.warning("requests.unanswered", subject=message.subject, reason=str(error))

    async def _pause(self) -> None:
        for _ in range(int(_AGAIN_S / _LOOK_S)):
            if self._stopping.is_set():
                return
            await asyncio.sleep(_LOOK_S)
