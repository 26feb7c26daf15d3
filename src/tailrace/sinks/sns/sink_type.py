"""What Tailrace knows about the sink `sns`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.sinks.aws.sink_type import NOT_ATTRIBUTES, AwsType
from tailrace.sinks.sink_type import Promises
from tailrace.sinks.sns.settings import SnsSink

if TYPE_CHECKING:
    from tailrace.sinks.sns.sink import Sns

# ruff: noqa: PLC0415 - botocore is an extra, and is loaded where a sink is opened


class SnsType(AwsType[SnsSink]):
    """A message per change to the subscribers of a topic, standard or FIFO."""

    name = "sns"
    title = "Amazon SNS"
    settings = SnsSink
    own_headers = NOT_ATTRIBUTES
    promises = Promises(
        delivery="at least once; FIFO: a repeated message is dropped for five minutes",
        order=(
            "per key in FIFO topics, whose group is the key. To standard topics a key is sent in "
            "order, and they deliver it in any"
        ),
        duplicates=(
            "FIFO: the deduplication id is the event id. A message is sent again if its answer was "
            "lost, and if the pipeline was interrupted before the answer."
        ),
        largest_message="`max_message_bytes` with attributes, 256 KiB by default; larger: parked",
        batch="`batch_rows` messages of different keys in a request, at most 10; `concurrency`",
    )

    def load(self) -> type[Sns]:
        """Import the sink."""
        from tailrace.sinks.sns.sink import Sns

        return Sns


SINK = SnsType()
