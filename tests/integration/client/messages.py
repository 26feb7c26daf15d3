"""Messages of a pipeline of shape `bridge`, published by the test itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import nats
import orjson
from nats.js.api import StreamConfig

from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from nats.js.api import ConsumerInfo


def message(number: int, *, operation: str = "INSERT", xid: int | None = None) -> dict[str, Any]:
    """The change with commit LSN `number`."""
    return {
        "data": {"id": number},
        "msg_id": f"{number:x}-users-{operation.lower()}-0",
        "operation": operation,
        "relation_id": 16392,
        "subject": f"cdc.users.{operation.lower()}",
        "table": "users",
        "schema": "public",
        "lsn": f"0/{number:X}",
        "xid": xid or number,
        "timestamp": "2026-01-01T00:00:00Z",
    }


async def create_stream(url: str, **settings: Any) -> None:
    """Create the stream CDC."""
    connection = await nats.connect(url)
    try:
        config = StreamConfig(name="CDC", subjects=["cdc.>"], **settings)
        await connection.jetstream(timeout=60).add_stream(config)
    finally:
        await connection.close()


async def publish(url: str, numbers: Iterable[int], *, subject: str = "cdc.users.insert") -> None:
    """Publish changes without message ids, so JetStream does not remove copies."""
    connection = await nats.connect(url)
    try:
        for number in numbers:
            await connection.jetstream(timeout=60).publish(subject, orjson.dumps(message(number)))
    finally:
        await connection.close()


async def take_ids(events: AsyncIterator[Any], count: int, *, ack: bool = False) -> list[int]:
    """The row ids of the next changes."""
    row_ids = []
    for _ in range(count):
        change = await anext(events)
        row_ids.append(change.data["id"])
        if ack:
            await change.ack()
    return row_ids


async def wait_for_consumer(url: str, condition: Callable[[ConsumerInfo], Any]) -> None:
    """Wait until a consumer of the stream CDC fulfils a condition."""
    connection = await nats.connect(url)
    try:
        async with asyncio.timeout(LONG_S):
            while not any(
                map(condition, await connection.jetstream(timeout=60).consumers_info("CDC"))
            ):
                await asyncio.sleep(0.05)
    finally:
        await connection.close()
