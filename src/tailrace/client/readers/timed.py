"""Waits for a reader with a timeout, without losing messages that arrive later."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.client.connection import MissingStreamError

if TYPE_CHECKING:
    from tailrace.client.readers.ordered import OrderedReader
    from tailrace.client.readers.reader import StreamMessage

_POLL_S = 0.1


class TimedReader:
    """An ordered reader with a timeout. It also waits for the stream to be created."""

    def __init__(self, reader: OrderedReader) -> None:
        self._reader = reader
        self._step: asyncio.Future[list[StreamMessage]] | None = None

    async def next(self, timeout_s: float | None) -> list[StreamMessage] | None:
        """The next messages; None after the timeout. A later call gets what arrives later."""
        if self._step is None:
            self._step = asyncio.ensure_future(self._read())
        done, _ = await asyncio.wait({self._step}, timeout=timeout_s)
        if not done:
            return None
        step, self._step = self._step, None
        return step.result()

    async def _read(self) -> list[StreamMessage]:
        while True:
            try:
                return await self._reader.next()
            except MissingStreamError:
                # The first snapshot creates the stream.
                await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        """Cancel the pending wait and close the reader."""
        if self._step is not None:
            self._step.cancel()
            await asyncio.gather(self._step, return_exceptions=True)
        await self._reader.close()
