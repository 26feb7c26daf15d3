"""What Tailrace knows about the sink `eventbridge`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.sinks.aws.sink_type import AwsType
from tailrace.sinks.eventbridge.settings import EventBridgeSink
from tailrace.sinks.sink_type import Promises

if TYPE_CHECKING:
    from tailrace.sinks.eventbridge.sink import EventBridge

# ruff: noqa: PLC0415 - botocore is an extra, and is loaded where a sink is opened


class EventBridgeType(AwsType[EventBridgeSink]):
    """An event per change on an event bus."""

    name = "eventbridge"
    title = "Amazon EventBridge"
    settings = EventBridgeSink
    promises = Promises(
        delivery="at least once",
        order="a key is sent in order; EventBridge delivers in any order",
        duplicates=(
            "An event is sent again if its answer was lost, and if the pipeline was interrupted "
            "before the answer. EventBridge does not recognise it; `resources` has the id."
        ),
        largest_message="`max_message_bytes` with detail type, 1 MB by default; larger: parked",
        batch="`batch_rows` events of different keys in a request, at most 10; `concurrency`",
    )

    def load(self) -> type[EventBridge]:
        """Import the sink."""
        from tailrace.sinks.eventbridge.sink import EventBridge

        return EventBridge


SINK = EventBridgeType()
