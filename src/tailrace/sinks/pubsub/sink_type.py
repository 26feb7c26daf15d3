"""What Tailrace knows about the sink `pubsub`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tailrace.errors import SinkRefusedError, TailraceError
from tailrace.finding import Finding, error
from tailrace.sinks.pubsub.destination import TopicTemplate
from tailrace.sinks.pubsub.settings import PubSubSink
from tailrace.sinks.sink_type import Promises, SinkType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.sinks.contract import Lane
    from tailrace.sinks.pubsub.sink import PubSub

# ruff: noqa: PLC0415 - the client is an extra, and is loaded where a sink is opened


class PubSubType(SinkType[PubSubSink]):
    """A message per change in a topic, with the key as the ordering key."""

    name = "pubsub"
    title = "Google Cloud Pub/Sub"
    settings = PubSubSink
    own_headers = re.compile("id|key|destination|position|goog.*", re.IGNORECASE)
    promises = Promises(
        delivery="at least once",
        order=(
            "per key, to subscriptions with message ordering: the key is the ordering key, and has "
            "one request at a time. Without `ordering`, a key is sent in order, and Pub/Sub "
            "delivers it in any"
        ),
        duplicates=(
            "A message is sent again if its answer was lost, and if the pipeline was interrupted "
            "before the answer. Pub/Sub does not recognise it; consumers do, by the attribute `id`"
        ),
        largest_message="`max_message_bytes` with attributes, 10 MB by default; larger: parked",
        batch=(
            "`batch_rows` messages of one key in a request, without `ordering` of any keys; "
            "`concurrency`"
        ),
    )

    def destination(self, template: str, *, database: str) -> TopicTemplate:
        """Fills a template of topics."""
        return TopicTemplate(template, database=database)

    def sends_alone(self, settings: PubSubSink) -> bool:
        """It keeps nothing of what it has sent."""
        del settings
        return True

    def open(self, settings: PubSubSink, lane: Lane) -> PubSub:
        """A client, which connects when the first request is sent."""
        try:
            from tailrace.sinks.pubsub.sink import PubSub
        except ModuleNotFoundError as missing:
            raise SinkRefusedError(
                f"the sink {self.name} needs {missing.name}, which is not installed",
                hint="pip install 'tailrace[pubsub]'",
            ) from missing
        return PubSub(settings, lane)

    def probe(self, settings: PubSubSink, *, name: str) -> None:
        """The service must answer and accept the login."""
        from tailrace.sinks.contract import Lane

        sink = self.open(settings, Lane(pipeline=name))
        from tailrace.sinks.pubsub.checking import probe

        probe(sink)

    def check_destinations(
        self, settings: PubSubSink, destinations: Sequence[str]
    ) -> Iterator[Finding]:
        """Each must exist."""
        from tailrace.sinks.contract import Lane

        try:
            sink = self.open(settings, Lane(pipeline="check"))
            from tailrace.sinks.pubsub.checking import inspect

            yield from inspect(sink, destinations)
        except TailraceError as failed:
            yield error(str(failed), failed.hint)


SINK = PubSubType()
