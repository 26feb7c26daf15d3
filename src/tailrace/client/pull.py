"""One JetStream consumer, asked for hundreds of messages at a time.

nats-py's `fetch` waits for a whole batch once its first message is there, which would hold changes
back for seconds. Here a request stays open and messages are handed on as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import nats.errors
import nats.js.errors
import orjson

from tailrace.client.connection import PATIENCE_S

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from tailrace.client.connection import Connection

_EXPIRES_S = 20.0
_HEARTBEAT_S = 5.0
_NS = 1_000_000_000
_PAUSE_S = 0.5
_OVER = {"404", "408"}
"""Nothing there, or not within the request's time: no reason to doubt the consumer."""


class Pull:
    """Messages of one consumer. Not for two readers at once."""

    def __init__(self, connection: Connection, stream: str, consumer: str, *, batch: int) -> None:
        self.consumer = consumer
        self._connection = connection
        self._stream = stream
        self._batch = batch
        self._inbox = connection.client.new_inbox()
        self._subscription: Subscription | None = None
        self._number = 0
        self._outstanding = 0
        self._arrived: list[Msg] = []
        self._wake = asyncio.Event()
        self.doubtful = False
        """Whether messages may have been lost on the way; the reader looks, and clears it."""

    async def open(self) -> None:
        """Listen for answers."""
        self._connection.interrupted.add(self._interrupted)
        self._subscription = await self._connection.client.subscribe(
            f"{self._inbox}.*", cb=self._take
        )

    async def close(self) -> None:
        """Listen no more."""
        self._connection.interrupted.discard(self._interrupted)
        if self._subscription is not None and not self._connection.client.is_closed:
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()

    async def next(self) -> list[Msg]:
        """What has come, after waiting for it. Empty: nothing came for a while; see `doubtful`."""
        if not self._arrived:
            if not self._outstanding:
                await self._request()
            await self._answered()
        arrived, self._arrived = self._arrived, []
        return arrived

    async def _answered(self) -> None:
        while not self._arrived and self._outstanding:
            self._wake.clear()
            try:
                # Heartbeats wake us, too; when two are missing, nobody is there.
                await asyncio.wait_for(self._wake.wait(), 2.2 * _HEARTBEAT_S)
            except TimeoutError:
                self._interrupted()

    async def _request(self) -> None:
        self._number += 1
        self._outstanding = self._batch
        self._wake.clear()
        body = {
            "batch": self._batch,
            "expires": int(_EXPIRES_S * _NS),
            "idle_heartbeat": int(_HEARTBEAT_S * _NS),
        }
        await self._connection.client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self.consumer}",
            orjson.dumps(body),
            reply=f"{self._inbox}.{self._number}",
        )

    async def _take(self, message: Msg) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._arrived.append(message)
            self._outstanding = max(self._outstanding - 1, 0)
        elif message.subject == f"{self._inbox}.{self._number}":
            status = (message.headers or {}).get("Status", "")
            if status != "100":
                self._outstanding = 0
                self.doubtful = self.doubtful or status not in _OVER
        self._wake.set()

    def _interrupted(self) -> None:
        """Whatever was asked for will not come any more."""
        self._outstanding, self.doubtful = 0, True
        self._wake.set()

    async def alive(self) -> bool:
        """Whether the consumer is there. Waits for JetStream to say so, one way or the other."""
        while True:
            try:
                await self._connection.jetstream.consumer_info(
                    self._stream, self.consumer, timeout=PATIENCE_S
                )
            except nats.js.errors.NotFoundError:
                return False
            except (nats.errors.Error, nats.js.errors.Error, TimeoutError):
                await asyncio.sleep(_PAUSE_S)
            else:
                return True
