"""One JetStream pull consumer, with hundreds of messages per request.

nats-py's `fetch` returns when its whole batch is there or its timeout ends, which delays changes
by seconds. Here a request stays open, and messages are returned as they arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import nats.errors
import nats.js.errors
import orjson

from tailrace.backoff import Backoff
from tailrace.client.connection import REQUEST_TIMEOUT_S

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from tailrace.client.connection import Connection

# A request that expires tells the reader that the stream is idle, so that it can advance over
# messages of other tables. Shorter requests would load the server, longer ones delay that.
_EXPIRES_S = 20.0
# JetStream sends heartbeats while a request is open and idle. Without them a server that was killed
# looks like an idle stream until TCP notices, which may take minutes.
_HEARTBEAT_S = 5.0
_NS = 1_000_000_000
_EXPIRED = {"404", "408"}
"""Statuses of a request that ended without messages. The consumer itself is well."""


class PullConsumer:
    """Messages of one consumer. One task at a time may read it."""

    def __init__(self, connection: Connection, stream: str, name: str, *, batch: int) -> None:
        self.name = name
        self._connection = connection
        self._stream = stream
        self._batch = batch
        self._inbox = connection.client.new_inbox()
        self._subscription: Subscription | None = None
        self._request_number = 0
        self._outstanding = 0
        self._messages: list[Msg] = []
        self._wake = asyncio.Event()
        self.gap_possible = False
        """Whether messages may have been lost in transit. The reader checks, and clears it."""

    async def open(self) -> None:
        """Subscribe to the inbox."""
        self._connection.on_interrupt.add(self._on_interrupt)
        self._subscription = await self._connection.client.subscribe(
            f"{self._inbox}.*", cb=self._on_message
        )

    async def close(self) -> None:
        """Unsubscribe. The consumer stays on the server."""
        self._connection.on_interrupt.discard(self._on_interrupt)
        if self._subscription is not None and not self._connection.client.is_closed:
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()

    async def next(self) -> list[Msg]:
        """The messages that have arrived, at least one.

        An empty list: the request expired, or the connection broke; then `gap_possible` is set.
        """
        if not self._messages:
            if not self._outstanding:
                await self._request()
            await self._wait_for_messages()
        messages, self._messages = self._messages, []
        return messages

    async def _wait_for_messages(self) -> None:
        while not self._messages and self._outstanding:
            self._wake.clear()
            try:
                # Heartbeats set the event, too. Two missing heartbeats: the server is gone.
                await asyncio.wait_for(self._wake.wait(), 2.2 * _HEARTBEAT_S)
            except TimeoutError:
                self._on_interrupt()

    async def _request(self) -> None:
        self._request_number += 1
        self._outstanding = self._batch
        self._wake.clear()
        body = {
            "batch": self._batch,
            "expires": int(_EXPIRES_S * _NS),
            "idle_heartbeat": int(_HEARTBEAT_S * _NS),
        }
        await self._connection.client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self.name}",
            orjson.dumps(body),
            reply=f"{self._inbox}.{self._request_number}",
        )

    async def _on_message(self, message: Msg) -> None:
        """A message of the stream, or the status of a request: 100 is a heartbeat."""
        # Only messages of the stream have an acknowledgement subject as their reply.
        if message.reply.startswith("$JS.ACK."):
            self._messages.append(message)
            self._outstanding = max(self._outstanding - 1, 0)
        # The status of an older request, from before an interruption, is not about this one.
        elif message.subject == f"{self._inbox}.{self._request_number}":
            status = (message.headers or {}).get("Status", "")
            if status != "100":
                self._outstanding = 0
                # Any other status, 409 for example: the consumer was deleted or its leader moved.
                self.gap_possible = self.gap_possible or status not in _EXPIRED
        self._wake.set()

    def _on_interrupt(self) -> None:
        """The open request is lost: its messages do not arrive any more."""
        self._outstanding, self.gap_possible = 0, True
        self._wake.set()

    async def exists(self) -> bool:
        """Whether the server has the consumer. Retries until JetStream answers."""
        backoff = Backoff(first_s=0.5, max_s=2.0)
        while True:
            try:
                await self._connection.jetstream.consumer_info(
                    self._stream, self.name, timeout=REQUEST_TIMEOUT_S
                )
            except nats.js.errors.NotFoundError:
                return False
            except (nats.errors.Error, nats.js.errors.Error, TimeoutError):
                await asyncio.sleep(backoff.next_s())
            else:
                return True
