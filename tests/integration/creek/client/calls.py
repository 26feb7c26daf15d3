"""Calls of a client in a test, with timeouts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tailrace.client import creek
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tailrace.client.creek import Creek


def run_connected(url: str, check: Callable[[Creek], Awaitable[object]], **options: Any) -> None:
    """Run a check with a client."""

    async def run() -> None:
        async with creek.connect(url, **options) as client:
            await check(client)

    asyncio.run(run())


async def take(stream: AsyncIterator[Any], count: int) -> list[Any]:
    """The next items."""
    async with asyncio.timeout(LONG_S):
        return [await anext(stream) for _ in range(count)]


async def rest(stream: AsyncIterator[Any]) -> list[Any]:
    """All items until the end."""
    async with asyncio.timeout(LONG_S):
        return [item async for item in stream]
