"""Calls of a client in a test: connected, and never for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tailrace.client import creek

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tailrace.client.creek import Creek


def connected(url: str, check: Callable[[Creek], Awaitable[object]], **options: Any) -> None:
    """Run a check with a client."""

    async def run() -> None:
        async with creek.connect(url, **options) as client:
            await check(client)

    asyncio.run(run())


async def taken(stream: AsyncIterator[Any], count: int) -> list[Any]:
    """The next so many."""
    async with asyncio.timeout(60):
        return [await anext(stream) for _ in range(count)]


async def rest(stream: AsyncIterator[Any]) -> list[Any]:
    """All until the end."""
    async with asyncio.timeout(60):
        return [each async for each in stream]
