"""Sinks for the tests' server of Pub/Sub."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.registry import SINKS
from tailrace.sinks.retry import Retry
from tests.unit.sinks.rows import rows, with_column

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tailrace.sinks.contract import Receipt, Sink
    from tests.pubsub import PubSubServer

SINK = SINKS.find("pubsub")
SOON = Retry(attempts=8, first_s=0.01, max_s=0.05)


def settings_of(server: PubSubServer, **keys: Any) -> Any:
    given = {"type": "pubsub", "topic": "cdc.{table}", **server.keys, **keys}
    return SINK.settings.model_validate(given)


@contextmanager
def opened(
    server: PubSubServer, retry: Retry = SOON, *, ordered: bool = True, **keys: Any
) -> Iterator[Sink]:
    lane = Lane(pipeline="test", retry=retry, ordered=ordered)
    sink = SINK.open(settings_of(server, **keys), lane)
    sink.open(ORIGIN)
    try:
        yield sink
    finally:
        sink.close()


def keyed(topic: str, keys: str) -> pa.RecordBatch:
    """A message for each key, which is a letter."""
    batch = rows(range(len(keys)), destination=topic.encode())
    return with_column(batch, "key", [letter.encode() for letter in keys])


def deliver(sink: Sink, batch: pa.RecordBatch) -> Receipt:
    """Send messages and wait for the answers."""
    assert sink.inspect(batch) == {}
    sink.write(batch)
    return sink.flush()


def number_of(data: bytes) -> int:
    """The number of a message, by its payload."""
    return int(data.partition(b"\r")[0])
