"""The publisher, against a server that refuses messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import SinkError, SinkRefusedError, SinkUnreachableError
from tailrace.jetstream.bulk.publisher import Publisher
from tailrace.jetstream.protocol import parse
from tests.unit.sinks.rows import rows

if TYPE_CHECKING:
    from tailrace.jetstream.protocol import Event

_REPLY = re.compile(rb"HPUB (\S+) (\S+) ")


class NoResponders:
    """A connection to a server where nothing receives messages: "no responders"."""

    inbox = b"_INBOX.abc."

    def __init__(self, *, stream_exists: bool) -> None:
        self._stream_exists = stream_exists
        self._answers = b""

    def send(self, data: memoryview) -> None:
        for subject, reply in _REPLY.findall(bytes(data)):
            header = b"NATS/1.0 503\r\nNats-Subject: %s\r\n\r\n" % subject
            size = len(header)
            self._answers += b"HMSG %s 1 %d %d\r\n%s\r\n" % (reply, size, size, header)

    def receive(self, _deadline: float) -> bytes:
        answers, self._answers = self._answers, b""
        return answers

    def parse(self, data: bytes) -> list[Event]:
        return parse(data)[0]

    def request(self, subject: str, _body: object = None) -> dict[str, Any]:
        assert subject == "$JS.API.STREAM.INFO.CDC"
        if self._stream_exists:
            return {"config": {"name": "CDC"}}
        return {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}


@pytest.mark.parametrize(
    ("stream_exists", "kind", "message"),
    [
        (True, SinkUnreachableError, "the stream may have no leader"),
        (False, SinkRefusedError, "no stream has the subject cdc.orders.insert$"),
    ],
)
def test_a_message_without_responders(
    stream_exists: bool, kind: type[SinkError], message: str
) -> None:
    """GIVEN a stream of a cluster that has no leader THEN a retry helps; without a stream it does
    not."""
    connection: Any = NoResponders(stream_exists=stream_exists)
    publisher = Publisher(connection, stream="CDC", max_outstanding=100, timeout_s=1)
    publisher.publish(rows(range(3)))
    with pytest.raises(kind, match=message) as caught:
        publisher.flush()
    assert caught.value.transient is stream_exists
