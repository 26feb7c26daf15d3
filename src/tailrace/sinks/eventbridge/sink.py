"""`EventBridge`: the sink. A message counts once EventBridge has accepted its event.

The detail of an event is a JSON object. A payload that is none, such as MessagePack, is wrapped:
`{"encoding": "base64", "payload": "..."}`. `resources` has the id of the message, and `time` is
when its transaction was committed.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow.compute as pc

from tailrace.sinks.aws.answers import outcomes_by_row
from tailrace.sinks.aws.failures import Service
from tailrace.sinks.aws.sink import AwsSink
from tailrace.sinks.aws.text import text_of
from tailrace.sinks.eventbridge.destination import parse_destination

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.finding import Finding
    from tailrace.sinks.contract import Lane
    from tailrace.sinks.eventbridge.settings import EventBridgeSink
    from tailrace.sinks.outcome import Outcome

EVENTBRIDGE = Service(
    name="EventBridge",
    client="events",
    kind="event bus",
    destination="a bus, a blank and a detail type of at most 128 characters",
    permission="events:PutEvents",
    look_up="events:DescribeEventBus",
    create="aws events create-event-bus --name",
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_BYTES = 14
"""What EventBridge counts for `time`."""


class EventBridge(AwsSink):
    """Puts events onto buses."""

    service = EVENTBRIDGE

    def __init__(self, settings: EventBridgeSink, lane: Lane) -> None:
        super().__init__(settings, lane)
        self._source = settings.source

    def resource(self, destination: str) -> str:
        """The bus."""
        return destination.partition(" ")[0]

    def takes(self, destination: str) -> bool:
        """A bus and a detail type."""
        return parse_destination(destination) is not None

    def sizes_of(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """As EventBridge counts the bytes of an entry."""
        parts = [
            pc.binary_length(batch.column(name)).to_numpy()
            for name in ("payload", "id", "destination")
        ]
        fixed = _TIME_BYTES + len(self._source.encode())
        return np.asarray(np.sum(parts, axis=0, dtype=np.int64)) + fixed

    def send_entries(
        self, client: Any, destination: str, rows: pa.RecordBatch
    ) -> Mapping[int, Outcome]:
        """One PutEvents. The answer has a result for each event, in order."""
        to = parse_destination(destination)
        assert to is not None, "inspected"
        columns = [rows.column(name).to_pylist() for name in ("payload", "id", "committed_at")]
        entries = [
            {
                "EventBusName": to.bus,
                "DetailType": to.detail_type,
                "Source": self._source,
                "Detail": detail_of(payload),
                "Resources": [name.decode("utf-8", "replace")],
                "Time": _EPOCH + timedelta(microseconds=committed_at),
            }
            for payload, name, committed_at in zip(*columns, strict=True)
        ]
        answer = client.put_events(Entries=entries)
        return outcomes_by_row(
            self.service,
            answer.get("Entries", ()),
            count=rows.num_rows,
            accepted="EventId",
            sender_fault=True,
            destination=to.bus,
        )

    def ping(self, client: Any) -> None:
        """List a bus."""
        client.list_event_buses(Limit=1)

    def look_up(self, client: Any, destination: str) -> Iterator[Finding]:
        """The bus must exist."""
        client.describe_event_bus(Name=destination)
        return iter(())


def detail_of(payload: bytes) -> str:
    """The payload if it is a JSON object, otherwise an object with the payload in Base64.

    >>> detail_of(b'{"id": 1}'), detail_of(b"\\x81")
    ('{"id": 1}', '{"encoding":"base64","payload":"gQ=="}')
    """
    text = text_of(payload)
    if text is not None:
        try:
            if isinstance(orjson.loads(payload), dict):
                return text
        except orjson.JSONDecodeError:
            pass
    wrapped = {"encoding": "base64", "payload": base64.b64encode(payload).decode()}
    return orjson.dumps(wrapped).decode()
