"""What `tailrace check` and the start of a pipeline ask Pub/Sub. Nothing is changed."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError

from tailrace.finding import Finding, error, info
from tailrace.sinks.pubsub.failures import denies, throttles, translate
from tailrace.sinks.requests.checking import look_up_each

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.sinks.pubsub.sink import Publisher, PubSub


def probe(sink: PubSub) -> None:
    """Raise an error unless the service answers and accepts the login."""
    with closing(sink.connect()) as connection:
        try:
            connection.list_topics()
        except GoogleAPICallError as failed:
            # The permission to list is not needed for anything else.
            if not denies(failed) and not throttles(failed):
                raise translate(failed) from None
        except GoogleAuthError as failed:
            raise translate(failed) from None


def inspect(sink: PubSub, destinations: Sequence[str]) -> Iterator[Finding]:
    """Look every topic up."""
    return look_up_each(sink, destinations, "topic", _look_up)


def _look_up(connection: Publisher, topic: str) -> Iterator[Finding]:
    try:
        connection.get_topic(topic)
    except GoogleAPICallError as failed:
        if denies(failed):
            yield info(
                f"the topic {topic} cannot be looked up",
                "To check it, allow pubsub.topics.get on it, as roles/pubsub.viewer does.",
            )
            return
        translated = translate(failed, topic=topic)
        yield error(str(translated), translated.hint)
