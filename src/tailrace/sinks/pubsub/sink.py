"""`PubSub`: the sink. A message counts once Pub/Sub has answered its request with an id for it.

Pub/Sub accepts a request or refuses it, never in part. It orders the messages of an ordering key as
it receives them and answers when they are stored, and each request must have one ordering key. So a
request has messages of one key, in order, and the next one of the key is sent after the answer: a
failed request is not overtaken, without any state at the service. Without `ordering`, requests have
messages of many keys, and a key still has one request at a time.

Requests are unary calls of the generated client, over gRPC. The library's own publisher batches and
retries in threads: it would be a second engine with its own state of failed keys. REST needs Base64
and JSON for each message, and Google's test server, which the tests use, speaks gRPC only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError
from google.pubsub_v1.types import PublishRequest

from tailrace.errors import SinkRefusedError
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.pubsub import messages
from tailrace.sinks.pubsub.destination import topic_of
from tailrace.sinks.pubsub.failures import outcome_of, translate
from tailrace.sinks.pubsub.session import client_of
from tailrace.sinks.requests.sink import RequestSink, invalid_destination

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.errors import PoisonedError
    from tailrace.sinks.contract import Lane
    from tailrace.sinks.pubsub.settings import PubSubSink

_NO_RESULT = Outcome(
    verdict=Verdict.RETRY, code="NO_RESULT", reason="the answer does not have an id per message"
)
_DIFFERENT_KEYS = Outcome(
    verdict=Verdict.REFUSED, code="DIFFERENT_KEYS", reason="keys with the same hash share a request"
)
"""Not sent: the engine sends them one by one."""


class Publisher:
    """A client. It sends each request once: retries are the engine's, which keeps keys in order
    meanwhile."""

    def __init__(self, settings: PubSubSink) -> None:
        self._client = client_of(settings)
        self._project = f"projects/{settings.project}"
        self._once = {"retry": None, "timeout": settings.timeout_s}

    def publish(self, request: Any) -> int:
        """Publish messages. Returns how many were accepted: all of them."""
        answer = self._client.publish(request=PublishRequest.wrap(request), **self._once)
        return len(answer.message_ids)

    def get_topic(self, topic: str) -> None:
        """Read the description of a topic."""
        self._client.get_topic(topic=topic, **self._once)

    def list_topics(self) -> None:
        """List a topic, if there is one."""
        self._client.list_topics(request={"project": self._project, "page_size": 1}, **self._once)

    def close(self) -> None:
        """Close the channel. Requests without an answer fail."""
        self._client.transport.close()


class PubSub(RequestSink[Publisher]):
    """Publishes messages to topics."""

    def __init__(self, settings: PubSubSink, lane: Lane) -> None:
        super().__init__(settings, lane)
        self._settings = settings
        self.one_key = settings.ordering

    def connect(self) -> Publisher:
        """A client. It connects when the first request is sent."""
        try:
            return Publisher(self._settings)
        except OSError as error:
            raise SinkRefusedError(
                f"{error.filename} cannot be read: {error.strerror}",
                hint="Check credentials_file and tls_ca of the sink.",
            ) from error
        except (GoogleAuthError, ValueError) as error:
            raise translate(error) from None

    def send(self, connection: Publisher, rows: pa.RecordBatch) -> Mapping[int, Outcome]:
        """Publish. An error of the request is the outcome of all its messages."""
        topic = self.resource(rows.column("destination")[0].as_py().decode())
        request = messages.request_of(topic, rows, ordering=self._settings.ordering)
        everything = range(rows.num_rows)
        if len({each.ordering_key for each in request.messages}) > 1:
            return dict.fromkeys(everything, _DIFFERENT_KEYS)
        try:
            accepted = connection.publish(request)
        except GoogleAPICallError as error:
            return dict.fromkeys(everything, outcome_of(error, topic=topic))
        return {} if accepted == rows.num_rows else dict.fromkeys(everything, _NO_RESULT)

    def resource(self, destination: str) -> str:
        """The path of a topic."""
        found = topic_of(destination, self._settings.project)
        assert found is not None, destination
        return f"projects/{found[0]}/topics/{found[1]}"

    def flaw_of(self, destination: bytes) -> PoisonedError | None:
        """A destination must be a topic."""
        if topic_of(destination.decode("utf-8", "replace"), self._settings.project) is not None:
            return None
        return invalid_destination(
            destination, "a topic: 3 to 255 letters, digits and -._~+%, first a letter, not `goog`"
        )

    def sizes_of(self, batch: pa.RecordBatch) -> NDArray[np.integer]:
        """With attributes and ordering keys."""
        return messages.sizes_of(batch)
