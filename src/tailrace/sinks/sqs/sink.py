"""`Sqs`: the sink. A message counts once SQS has accepted its entry of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.sinks.aws.answers import outcomes_by_id
from tailrace.sinks.aws.attributes import entries_of, sizes_of
from tailrace.sinks.aws.checking import smaller_limit
from tailrace.sinks.aws.failures import Service
from tailrace.sinks.aws.sink import AwsSink
from tailrace.sinks.sqs.destination import FIFO, is_queue, is_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.finding import Finding
    from tailrace.sinks.contract import Lane
    from tailrace.sinks.outcome import Outcome
    from tailrace.sinks.sqs.settings import SqsSink

SQS = Service(
    name="SQS",
    client="sqs",
    kind="queue",
    destination="the name or the URL of a queue",
    permission="sqs:SendMessage and sqs:GetQueueUrl",
    look_up="sqs:GetQueueUrl and sqs:GetQueueAttributes",
    create="aws sqs create-queue --queue-name",
)


class Sqs(AwsSink):
    """Sends messages to queues."""

    service = SQS

    def __init__(self, settings: SqsSink, lane: Lane) -> None:
        super().__init__(settings, lane)
        self._urls: dict[str, str] = {}
        """Of queues that are given by name."""

    def takes(self, destination: str) -> bool:
        """A name or a URL."""
        return is_queue(destination)

    def sizes_of(self, batch: pa.RecordBatch) -> NDArray[np.integer]:
        """With the attributes."""
        return sizes_of(batch)

    def send_entries(
        self, client: Any, destination: str, rows: pa.RecordBatch
    ) -> Mapping[int, Outcome]:
        """One SendMessageBatch."""
        entries = entries_of(rows, body="MessageBody", fifo=destination.endswith(FIFO))
        answer = client.send_message_batch(
            QueueUrl=self._url_of(client, destination), Entries=entries
        )
        return outcomes_by_id(self.service, answer, count=rows.num_rows, destination=destination)

    def ping(self, client: Any) -> None:
        """List a queue, if there is one."""
        client.list_queues(MaxResults=1)

    def look_up(self, client: Any, destination: str) -> Iterator[Finding]:
        """The queue must exist. It may take less than SQS does."""
        url = self._url_of(client, destination)
        answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["MaximumMessageSize"])
        most = int(answer.get("Attributes", {}).get("MaximumMessageSize", 0))
        yield from smaller_limit(self.service, destination, most, self._aws.max_message_bytes)

    def _url_of(self, client: Any, destination: str) -> str:
        if is_url(destination):
            return destination
        if destination not in self._urls:
            self._urls[destination] = client.get_queue_url(QueueName=destination)["QueueUrl"]
        return self._urls[destination]
