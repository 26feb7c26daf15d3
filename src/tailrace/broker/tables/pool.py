"""Connections to PostgreSQL: a small pool that thousands of clients share.

The session settings are those of `tailrace.postgres.connection`.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import psycopg
from psycopg.types.json import set_json_loads

from tailrace.postgres.connection import connect_async, translate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Connection = psycopg.AsyncConnection[Any]
LOCK_TIMEOUT = "SET LOCAL lock_timeout TO '1s'"
"""For statements that may wait for a transaction of an application: a few of them would otherwise
hold all connections of the pool until it ends."""


async def connect(dsn: str, *, name: str) -> Connection:
    """A connection for one part of the broker; `name` is part of its application_name."""
    connection = await connect_async(dsn, application_name=f"tailrace {name}")
    set_json_loads(orjson.loads, connection)
    connection.prepare_threshold = 0
    return connection


class Pool:
    """At most `size` connections, opened on demand. A connection that failed is not reused."""

    def __init__(self, dsn: str, size: int) -> None:
        self._dsn = dsn
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(size)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for exclusive use. Errors of PostgreSQL are raised as `PostgresError`."""
        async with self._slots:
            taken = self._idle.pop() if self._idle else await connect(self._dsn, name="broker")
            try:
                yield taken
            except psycopg.Error as error:
                await taken.close()
                raise translate(error) from error
            except BaseException:
                await taken.close()
                raise
            self._idle.append(taken)

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop().close()
