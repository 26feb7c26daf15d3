"""What Tailrace knows about the sink `pull`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tailrace.finding import Finding, Severity, warning
from tailrace.sinks.pull.destination import NameTemplate
from tailrace.sinks.pull.settings import PullSink
from tailrace.sinks.sink_type import Promises, SinkType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.sinks.contract import Lane, Sink


class PullType(SinkType[PullSink]):
    """A store of this machine, from which consumers fetch over HTTP."""

    name = "pull"
    title = "HTTP pull"
    settings = PullSink
    own_headers = re.compile("")
    promises = Promises(
        delivery="exactly once into the store; at least once to consumers",
        order=(
            "per key: while a message of a key is out, its later messages wait; an answer may have "
            "several messages of a key, in order"
        ),
        duplicates=(
            "The position of a lane is in the transaction of its messages. A consumer receives a "
            "message again if it rejects it, or does not acknowledge it in time."
        ),
        largest_message="`max_message_bytes`, 5 MiB by default; a larger one is parked",
        batch="`batch_rows` messages per transaction; `max_ack_pending` messages at consumers",
    )

    def destination(self, template: str, *, database: str) -> NameTemplate:
        """Fills a template of names."""
        return NameTemplate(template, database=database)

    def group_misfit(self, settings: PullSink) -> str:
        """Records are found by what orders them."""
        if settings.mode == "records":
            return "a consumer of records gets the newest state of each key: remove `group`"
        return ""

    def stores_position(self, settings: PullSink) -> bool:
        """In each transaction."""
        del settings
        return True

    def open(self, settings: PullSink, lane: Lane) -> Sink:
        """The store, in the folder of the sink."""
        from tailrace.sinks.pull.sink import Pull  # noqa: PLC0415 - loads numpy and sqlite3

        return Pull(settings, lane)

    def probe(self, settings: PullSink, *, name: str) -> None:
        """The store is a file of this machine, which the sink creates."""

    def check(self, settings: PullSink) -> Iterator[Finding]:
        """Whether consumers have tokens of their own."""
        if not settings.tokens:
            yield warning(
                "consumers need the token of the HTTP endpoints, which may do everything",
                "Set `tokens` of the sink: one per consumer.",
            )
        else:
            yield Finding(severity=Severity.OK, finding="consumers have tokens of their own")


SINK = PullType()
