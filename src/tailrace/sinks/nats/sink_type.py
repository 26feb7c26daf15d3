"""What Tailrace knows about the sink `nats`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tailrace.finding import error
from tailrace.jetstream.names import token
from tailrace.sinks.nats.destination import SubjectTemplate
from tailrace.sinks.nats.settings import NatsSink
from tailrace.sinks.sink_type import Promises, SinkType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.finding import Finding
    from tailrace.sinks.contract import Lane, Sink

# ruff: noqa: PLC0415 - numpy and the connection are loaded where a sink is opened


class Nats(SinkType[NatsSink]):
    """One message per change, deduplicated by its id, read back after an interruption."""

    name = "nats"
    title = "NATS JetStream"
    settings = NatsSink
    own_headers = re.compile(r"(nats|tailrace)-.*", re.IGNORECASE)
    promises = Promises(
        delivery="effectively once",
        order="per lane; one lane keeps the order of commits",
        duplicates=(
            "`Nats-Msg-Id` is the event id, and the stream is read back at every start, so the "
            "server's duplicate window is not the limit. A stream that was purged in between can "
            "receive a message again."
        ),
        largest_message="the server's `max_payload` (1 MiB by default); a larger one is parked",
        batch="`max_outstanding` messages without an ack, 4,000 by default",
    )
    backlog_in_one_task = True

    def destination(self, template: str, *, database: str) -> SubjectTemplate:
        """Fills a template of subjects."""
        return SubjectTemplate(template, database=database)

    def atomic(self, settings: NatsSink) -> bool:
        """With `atomic: transaction`."""
        return settings.atomic == "transaction"

    def open(self, settings: NatsSink, lane: Lane) -> Sink:
        """A connection and its stream."""
        from tailrace.sinks.nats.sink import JetStream

        return JetStream(settings, lane, subjects=_own_subjects(settings, lane))

    def probe(self, settings: NatsSink, *, name: str) -> None:
        """The server must answer for the stream, which need not exist yet."""
        from tailrace.jetstream.stream import probe

        probe(settings, name=name)

    def check(self, settings: NatsSink) -> Iterator[Finding]:
        """Compare the stream with the settings."""
        from tailrace.jetstream.stream import inspect

        yield from inspect(settings)

    def check_destinations(
        self, settings: NatsSink, destinations: Sequence[str]
    ) -> Iterator[Finding]:
        """The stream must take every subject that the template gives."""
        from tailrace.jetstream.subjects import matches

        lost = [
            destination
            for destination in destinations
            if not any(matches(pattern, destination) for pattern in settings.stream.subjects)
        ]
        if lost:
            yield error(
                f"the stream {settings.stream.name} does not take {lost[0]}"
                + (f" and {len(lost) - 1} more" if len(lost) > 1 else ""),
                "Add the subject to sink.stream.subjects, or change sink.subject.",
            )


def _own_subjects(settings: NatsSink, lane: Lane) -> str:
    """The subjects that no other pipeline publishes to: those that name the database, or all."""
    from tailrace.jetstream.subjects import pattern_of

    if lane.routed or "{database}" not in settings.subject:
        return ">"
    return pattern_of(settings.subject.replace("{database}", token(lane.database)))


SINK = Nats()
