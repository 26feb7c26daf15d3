"""The topics and their settings, as the tables have them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from psycopg import AsyncConnection

_TOPICS = "SELECT id, name, uuid, partitions, unlogged, config FROM kafka.topics ORDER BY name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic. Its partitions are numbered from 0."""

    id: int
    name: str
    uuid: UUID
    partitions: int
    unlogged: bool
    config: dict[str, str] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """The table that holds its records."""
        return "kafka.unlogged_messages" if self.unlogged else "kafka.messages"


class TopicCatalog:
    """All topics in memory. The broker refreshes it whenever a client changes a topic."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[UUID, Topic] = {}
        self._refreshing = asyncio.Lock()

    async def refresh(self, connection: AsyncConnection[Any]) -> None:
        """Read all topics. One at a time: an earlier answer must not replace a later one."""
        async with self._refreshing:
            await self._refresh(connection)

    async def _refresh(self, connection: AsyncConnection[Any]) -> None:
        cursor = await connection.execute(_TOPICS)
        names = ("id", "name", "uuid", "partitions", "unlogged")
        topics = []
        for *values, config in await cursor.fetchall():
            # SQL may set a number where Kafka's clients set its text.
            texts = {setting: str(value) for setting, value in config.items()}
            topics.append(Topic(**dict(zip(names, values, strict=True)), config=texts))
        self.topics = {topic.name: topic for topic in topics}
        self.by_id = {topic.uuid: topic for topic in topics}
