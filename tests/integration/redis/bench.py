"""A pipeline of its own in a Redis that others use, and what it has delivered."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

import redis

from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.redis.settings import RedisSink
from tailrace.sinks.redis.sink import Redis
from tests.unit.sinks.rows import rows, with_column, write
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt


class Bench:
    """Sinks of one pipeline, which write to the stream, channel or keys `name`."""

    def __init__(self, url: str, name: str = "", **keys: Any) -> None:
        self.url = url
        self.name = name or f"t{uuid.uuid4().hex[:10]}"
        self.keys = keys

    @property
    def destination(self) -> bytes:
        return self.name.encode()

    def settings(self, **keys: Any) -> RedisSink:
        given = {"type": "redis", "url": self.url, "timeout_s": LONG_S}
        return RedisSink.model_validate(given | self.keys | keys)

    def sink(self, *, lane: int = 0, lanes: int = 1, history: str = "one", **keys: Any) -> Redis:
        made = Lane(pipeline=self.name, number=lane, lanes=lanes, history=history)
        return Redis(self.settings(**keys), made)

    @contextlib.contextmanager
    def opened(self, after: Position = ORIGIN, **given: Any) -> Iterator[Redis]:
        sink = self.sink(**given)
        try:
            sink.open(after)
            yield sink
        finally:
            sink.close()

    def rows(self, numbers: Iterable[int], **given: Any) -> pa.RecordBatch:
        return rows(numbers, destination=self.destination, **given)

    def deliver(self, numbers: Iterable[int], after: Position = ORIGIN, **given: Any) -> Receipt:
        """Write and flush with a new sink."""
        with self.opened(after, **given) as sink:
            write(sink, self.rows(numbers))
            return sink.flush()

    def keyed(self, numbers: Iterable[int]) -> pa.RecordBatch:
        """Messages whose keys are their numbers."""
        chosen = list(numbers)
        return with_column(self.rows(chosen), "key", [b"%d" % number for number in chosen])

    def send(self, batch: pa.RecordBatch, **given: Any) -> Receipt:
        """Write a batch and flush with a new sink."""
        with self.opened(**given) as sink:
            return send(sink, batch)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def entries(self, name: bytes | None = None) -> list[tuple[bytes, dict[bytes, bytes]]]:
        with self.client() as client:
            return list(client.xrange(name or self.destination))

    def numbers(self) -> list[int]:
        """The numbers of the messages in the stream."""
        return [int(fields[b"payload"].split(b"\r")[0]) for _, fields in self.entries()]

    @property
    def position_key(self) -> str:
        return f"tailrace:positions:{self.name}"


def send(sink: Redis, batch: pa.RecordBatch) -> Receipt:
    write(sink, batch)
    return sink.flush()
