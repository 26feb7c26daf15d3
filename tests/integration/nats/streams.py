"""One stream per test: fill it through the sink, and read what it holds.

The official client reads the stream: it shares no code with the sink.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

from tailrace.jetstream.connection import NatsConnection
from tailrace.position import ORIGIN, Position
from tailrace.sinks.contract import Lane
from tailrace.sinks.nats.settings import NatsSink
from tailrace.sinks.nats.sink import JetStream
from tests.jetstream import received
from tests.unit.sinks.rows import message_id, payload, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from tailrace.sinks.contract import Receipt

_streams = itertools.count()


def sink_settings(url: str, *, stream: dict[str, Any] | None = None, **given: Any) -> NatsSink:
    """Settings with a stream for this test alone."""
    number = next(_streams)
    own = {"name": f"CDC{number}", "subjects": (f"cdc{number}.>",)} | (stream or {})
    defaults = {"subject": f"cdc{number}.{{table}}", "timeout_s": 20}
    values = defaults | {"type": "nats", "url": url, "stream": own} | given
    return NatsSink.model_validate(values)


def altered(settings: NatsSink, **stream: Any) -> NatsSink:
    """The same settings with some stream settings changed."""
    return settings.model_copy(update={"stream": settings.stream.model_copy(update=stream)})


def subject(settings: NatsSink) -> bytes:
    return settings.stream.subjects[0].replace(">", "orders.insert").encode()


def batch(settings: NatsSink, numbers: range | list[int], **given: Any) -> pa.RecordBatch:
    return rows(numbers, **({"destination": subject(settings)} | given))


def forget_ids(settings: NatsSink) -> None:
    """Wait until the server has forgotten the ids of messages; it tells nobody when it has."""
    time.sleep(settings.stream.duplicate_window_s + 3)


def held(settings: NatsSink, url: str = "") -> list[tuple[bytes, bytes, bytes]]:
    """Subject, id and payload of everything in the stream, read by the official client."""
    found = received(url or settings.url.get_secret_value(), settings.stream.name)
    return [(each.subject.encode(), each.id.encode(), each.payload) for each in found]


def ids(settings: NatsSink) -> list[bytes]:
    return [name for _, name, _ in held(settings)]


def expected(settings: NatsSink, numbers: range) -> list[tuple[bytes, bytes, bytes]]:
    return [(subject(settings), message_id(n), payload(n)) for n in numbers]


def request(settings: NatsSink, api: str, body: object) -> dict[str, Any]:
    line = NatsConnection.connect(settings, name="test")
    try:
        return line.request(f"$JS.API.{api}", body)
    finally:
        line.close()


def make_stream(settings: NatsSink, **given: Any) -> None:
    config = {"name": settings.stream.name, "subjects": list(settings.stream.subjects)} | given
    answer = request(settings, f"STREAM.CREATE.{settings.stream.name}", config)
    assert "error" not in answer, answer


@contextlib.contextmanager
def opened(settings: NatsSink, after: Position = ORIGIN, name: str = "test") -> Iterator[JetStream]:
    sink = JetStream(settings, Lane(pipeline=name))
    sink.open(after)
    try:
        yield sink
    finally:
        sink.close()


def deliver(sink: JetStream, batches: Iterable[pa.RecordBatch]) -> Receipt:
    for each in batches:
        sink.write(each)
    return sink.flush()
