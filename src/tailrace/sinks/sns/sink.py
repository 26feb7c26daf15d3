"""`Sns`: the sink. A message counts once SNS has accepted its entry of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.sinks.aws.answers import outcomes_by_id
from tailrace.sinks.aws.attributes import entries_of, sizes_of
from tailrace.sinks.aws.checking import smaller_limit
from tailrace.sinks.aws.failures import Service
from tailrace.sinks.aws.sink import AwsSink
from tailrace.sinks.sns.destination import FIFO, is_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.finding import Finding
    from tailrace.sinks.outcome import Outcome

SNS = Service(
    name="SNS",
    client="sns",
    kind="topic",
    destination="the ARN of a topic",
    permission="sns:Publish",
    look_up="sns:GetTopicAttributes",
    create="aws sns create-topic --name",
)


class Sns(AwsSink):
    """Publishes messages to topics."""

    service = SNS

    def takes(self, destination: str) -> bool:
        """An ARN."""
        return is_topic(destination)

    def sizes_of(self, batch: pa.RecordBatch) -> NDArray[np.integer]:
        """With the attributes."""
        return sizes_of(batch)

    def send_entries(
        self, client: Any, destination: str, rows: pa.RecordBatch
    ) -> Mapping[int, Outcome]:
        """One PublishBatch."""
        entries = entries_of(rows, body="Message", fifo=destination.endswith(FIFO))
        answer = client.publish_batch(TopicArn=destination, PublishBatchRequestEntries=entries)
        return outcomes_by_id(self.service, answer, count=rows.num_rows, destination=destination)

    def ping(self, client: Any) -> None:
        """List topics."""
        client.list_topics()

    def look_up(self, client: Any, destination: str) -> Iterator[Finding]:
        """The topic must exist. It takes 256 KiB unless its attribute says otherwise."""
        answer = client.get_topic_attributes(TopicArn=destination)
        most = int(answer.get("Attributes", {}).get("MaximumMessageSize", 0))
        yield from smaller_limit(self.service, destination, most, self._aws.max_message_bytes)
