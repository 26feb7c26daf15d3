"""What `tailrace check` and the start of a pipeline ask a service. Nothing is changed."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from tailrace.finding import Finding, error, info, warning
from tailrace.sinks.aws.failures import denies, throttles
from tailrace.sinks.requests.checking import look_up_each

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.sinks.aws.failures import Service
    from tailrace.sinks.aws.sink import AwsSink


def probe(sink: AwsSink) -> None:
    """Raise an error unless the service answers and accepts the login."""
    with closing(sink.connect()) as client:
        try:
            sink.ping(client)
        except (BotoCoreError, ClientError) as failed:
            # The permission to list is not needed for anything else.
            if not denies(failed) and not throttles(failed):
                raise sink.service.translate(failed) from None


def inspect(sink: AwsSink, destinations: Sequence[str]) -> Iterator[Finding]:
    """Look every destination up."""

    def look_up(client: Any, name: str) -> Iterator[Finding]:
        try:
            yield from sink.look_up(client, name)
        except (BotoCoreError, ClientError) as failed:
            yield _failed(sink.service, failed, name)

    return look_up_each(sink, destinations, sink.service.kind, look_up)


def _failed(service: Service, failed: Exception, destination: str) -> Finding:
    if denies(failed):
        return info(
            f"the {service.kind} {destination} cannot be looked up",
            f"To check it, allow {service.look_up} on it.",
        )
    translated = service.translate(failed, destination=destination)
    return error(str(translated), translated.hint)


def smaller_limit(
    service: Service, destination: str, limit: int, allowed: int
) -> Iterator[Finding]:
    """A warning if a destination takes less than `max_message_bytes`."""
    if 0 < limit < allowed:
        yield warning(
            f"the {service.kind} {destination} takes messages of at most {limit} bytes; "
            f"max_message_bytes is {allowed}",
            f"Raise the limit of the {service.kind}, or lower max_message_bytes.",
        )
