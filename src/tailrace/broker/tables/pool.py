"""A few connections to PostgreSQL for thousands of clients."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import psycopg
from psycopg.types.json import set_json_loads

from tailrace.postgres.connection import translate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Connection = psycopg.AsyncConnection[Any]


async def connect(dsn: str, *, name: str) -> Connection:
    """A connection of the broker's."""
    try:
        made = await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, application_name=f"tailrace {name}", connect_timeout=10
        )
    except psycopg.Error as error:
        raise translate(error, dsn=dsn) from error
    set_json_loads(orjson.loads, made)
    made.prepare_threshold = 0
    return made


class Pool:
    """At most so many connections, made when they are needed; a broken one is not used again."""

    def __init__(self, dsn: str, size: int) -> None:
        self._dsn = dsn
        self._free: list[Connection] = []
        self._places = asyncio.Semaphore(size)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One that nobody else uses meanwhile. What PostgreSQL says is one of our errors."""
        async with self._places:
            taken = self._free.pop() if self._free else await connect(self._dsn, name="broker")
            try:
                yield taken
            except psycopg.Error as error:
                await taken.close()
                raise translate(error) from error
            except BaseException:
                await taken.close()
                raise
            self._free.append(taken)

    async def close(self) -> None:
        """Close those that are free."""
        while self._free:
            await self._free.pop().close()
