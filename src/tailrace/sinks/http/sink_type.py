"""What Tailrace knows about the sink `http`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tailrace.sinks.http.destination import PathTemplate
from tailrace.sinks.http.settings import OURS, HttpSink
from tailrace.sinks.sink_type import Promises, SinkType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.sinks.contract import Lane, Sink

# ruff: noqa: PLC0415 - the client is loaded where a sink is opened


class HttpType(SinkType[HttpSink]):
    """A request per message, or per array of messages."""

    name = "http"
    title = "HTTP"
    settings = HttpSink
    own_headers = re.compile("|".join(OURS), re.IGNORECASE)
    promises = Promises(
        delivery="at least once",
        order="per key: a key has one request at a time",
        duplicates=(
            "`webhook-id` is the event id. A message is sent again if its answer was lost, and "
            "with its batch if the pipeline was interrupted."
        ),
        largest_message="`max_message_bytes`, 5 MiB by default; a larger one is parked",
        batch="`batch_rows` messages in a request, `concurrency` requests at a time",
    )

    def destination(self, template: str, *, database: str) -> PathTemplate:
        """Fills a template of paths."""
        return PathTemplate(template, database=database)

    def header_misfit(self, settings: HttpSink, names: Sequence[str]) -> str:
        """A request has the headers of one message."""
        if settings.body == "array":
            return "a request has several messages and one set of headers: use `body: message`"
        return super().header_misfit(settings, names)

    def sends_alone(self, settings: HttpSink) -> bool:
        """It keeps nothing of what it has sent."""
        del settings
        return True

    def open(self, settings: HttpSink, lane: Lane) -> Sink:
        """A pool of connections."""
        from tailrace.sinks.http.sink import Http

        return Http(settings, lane)

    def probe(self, settings: HttpSink, *, name: str) -> None:
        """The receiver must answer."""
        from tailrace.sinks.http.sink import probe

        probe(settings, name=name)


SINK = HttpType()
