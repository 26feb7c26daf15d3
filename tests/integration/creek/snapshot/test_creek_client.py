"""Tailrace's Creek client reads the snapshots of this service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import nats
import pytest

from tailrace.client import creek
from tailrace.client.creek.snapshot import SnapshotFailedError
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tests.integration.creek.snapshot.system import System


async def streams(url: str) -> None:
    """Those that a client looks for."""
    client = await nats.connect(url)
    try:
        for kind in ("wal", "snap", "schema"):
            await client.jetstream(timeout=60).add_stream(
                name=f"CREEK_{kind}", subjects=[f"CREEK.*.{kind}.>"]
            )
    finally:
        await client.close()


def rows(system: System, table: str) -> list[dict[str, Any]]:
    """The rows of a table, as the client has them."""

    async def read() -> list[dict[str, Any]]:
        async with creek.connect(system.server.url) as client:
            found = client.snapshot(system.database.name, table)
            return [row async for row in found]

    return asyncio.run(read())


def test_rows_and_failures(system: System) -> None:
    system.database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, v text); CREATE TABLE hidden (id int);"
        "INSERT INTO items SELECT g, 'v' || g FROM generate_series(1, 1000) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    asyncio.run(streams(system.server.url))
    system.start_service()
    system.ask("hidden")
    found = sorted(rows(system, "public.items"), key=lambda row: int(row["id"]))
    assert found == [{"id": number, "v": f"v{number}"} for number in range(1, 1001)]
    with pytest.raises(TailraceError, match=r"no published table public\.hidden"):
        rows(system, "public.hidden")
    system.fault = ValueError("odd")
    with pytest.raises(SnapshotFailedError, match="ValueError: odd"):
        rows(system, "public.items")
