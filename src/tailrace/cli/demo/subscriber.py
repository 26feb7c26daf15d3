"""A JetStream consumer in a thread: receives the demo's messages in the stream's order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Self

from tailrace.cli.demo.arrival import Arrival, parse
from tailrace.errors import SinkUnreachableError
from tailrace.jetstream.client import connected, stream_info

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.aio.msg import Msg

    from tailrace.jetstream.settings import JetStreamSettings

_POLL_S = 0.1


class Subscriber:
    """Receives a sink's stream from its first message on. Waits until the stream exists."""

    def __init__(self, sink: JetStreamSettings) -> None:
        self._sink = sink
        self._arrived: deque[Arrival] = deque()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="subscriber", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def take(self) -> Iterator[Arrival]:
        """Changes received since the last call. Raises the error that ended the thread."""
        while self._arrived:
            yield self._arrived.popleft()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._receive_all())
        except Exception as error:
            self._failure = error

    async def _receive_all(self) -> None:
        stream = self._sink.stream.name
        while await stream_info(self._sink, stream) is None:
            if self._stopping.is_set():
                return
            await asyncio.sleep(_POLL_S)
        async with connected(self._sink) as client:
            # An ordered consumer detects a gap in the sequence and reads from there again.
            await client.jetstream().subscribe(
                ">", stream=stream, cb=self._receive, ordered_consumer=True
            )
            while not self._stopping.is_set():
                if client.is_closed:
                    raise SinkUnreachableError("lost the connection to NATS")
                await asyncio.sleep(_POLL_S)

    async def _receive(self, message: Msg) -> None:
        self._arrived.append(parse(message.data, time.time()))
