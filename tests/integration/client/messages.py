"""Messages as a pipeline of shape `bridge` sends them, put into a stream by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nats
import orjson
from nats.js.api import StreamConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


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


async def created(url: str, **settings: Any) -> None:
    """The stream CDC."""
    connection = await nats.connect(url)
    try:
        config = StreamConfig(name="CDC", subjects=["cdc.>"], **settings)
        await connection.jetstream().add_stream(config)
    finally:
        await connection.close()


async def sent(url: str, numbers: Iterable[int], *, subject: str = "cdc.users.insert") -> None:
    """Changes into the stream, without ids: copies stay copies."""
    connection = await nats.connect(url)
    try:
        for number in numbers:
            await connection.jetstream().publish(subject, orjson.dumps(message(number)))
    finally:
        await connection.close()


async def ids(events: AsyncIterator[Any], count: int, *, ack: bool = False) -> list[int]:
    """The next so many, by their numbers."""
    found = []
    for _ in range(count):
        change = await anext(events)
        found.append(change.data["id"])
        if ack:
            await change.ack()
    return found
