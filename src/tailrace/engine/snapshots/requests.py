"""The NATS side of snapshots: `snapshot.request.TABLE` comes in, an answer goes out.

Whoever asks with a reply subject is told the snapshot's id, or what is wrong; nobody is left
without an answer. Several who ask for one table while its snapshot is on its way get the same one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import nats.errors
import structlog

from tailrace.engine.jetstream import connected
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from tailrace.config import NatsSink

_LOOK_S = 0.2
_AGAIN_S = 2.0


class Requests:
    """Listens for requests until told to stop, whatever happens to the server meanwhile.

    `answer` gets what follows the subject's prefix and what the message says, and gives back the
    reply's bytes. It may take its time: it runs in a thread.
    """

    def __init__(
        self,
        sink: NatsSink,
        prefix: str,
        answer: Callable[[str, bytes], bytes],
        stopping: threading.Event,
    ) -> None:
        self._sink = sink
        self._prefix = prefix
        self._answer = answer
        self._stopping = stopping

    def run(self) -> None:
        """Listen."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with connected(self._sink) as client:
                    await self._listen(client)
            except TailraceError as error:
                structlog.get_logger().warning(
                    "snapshot.deaf", code=error.code, reason=str(error), again_in_s=_AGAIN_S
                )
                await self._pause(_AGAIN_S)

    async def _listen(self, client: Client) -> None:
        tasks: set[asyncio.Task[Any]] = set()

        async def on_message(message: Msg) -> None:
            task = asyncio.create_task(self._serve(message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        await client.subscribe(f"{self._prefix}.>", cb=on_message)
        await client.flush()
        structlog.get_logger().info("snapshot.listening", subject=f"{self._prefix}.>")
        while not self._stopping.is_set() and not client.is_closed:
            await asyncio.sleep(_LOOK_S)

    async def _serve(self, message: Msg) -> None:
        path = message.subject.removeprefix(f"{self._prefix}.")
        reply = await asyncio.to_thread(self._answer, path, message.data)
        if not message.reply:
            return
        try:
            await message.respond(reply)
        except nats.errors.Error as error:
            # Whoever asked is not there any more, or asks again.
            structlog.get_logger().warning("snapshot.unanswered", asked=path, reason=str(error))

    async def _pause(self, seconds: float) -> None:
        for _ in range(int(seconds / _LOOK_S)):
            if self._stopping.is_set():
                return
            await asyncio.sleep(_LOOK_S)
