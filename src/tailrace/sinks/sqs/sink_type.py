"""What Tailrace knows about the sink `sqs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.sinks.aws.sink_type import NOT_ATTRIBUTES, AwsType
from tailrace.sinks.sink_type import Promises
from tailrace.sinks.sqs.settings import SqsSink

if TYPE_CHECKING:
    from tailrace.sinks.sqs.sink import Sqs

# ruff: noqa: PLC0415 - botocore is an extra, and is loaded where a sink is opened


class SqsType(AwsType[SqsSink]):
    """A message per change in a queue, standard or FIFO."""

    name = "sqs"
    title = "Amazon SQS"
    settings = SqsSink
    own_headers = NOT_ATTRIBUTES
    promises = Promises(
        delivery="at least once; FIFO: a repeated message is dropped for five minutes",
        order=(
            "per key in FIFO queues, whose group is the key. To standard queues a key is sent in "
            "order, and they deliver it roughly so"
        ),
        duplicates=(
            "FIFO: the deduplication id is the event id. A message is sent again if its answer was "
            "lost, and if the pipeline was interrupted before the answer."
        ),
        largest_message="`max_message_bytes` with attributes, 1 MiB by default; larger: parked",
        batch="`batch_rows` messages of different keys in a request, at most 10; `concurrency`",
    )

    def load(self) -> type[Sqs]:
        """Import the sink."""
        from tailrace.sinks.sqs.sink import Sqs

        return Sqs


SINK = SqsType()
