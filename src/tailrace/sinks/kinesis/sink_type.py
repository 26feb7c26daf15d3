"""What Tailrace knows about the sink `kinesis`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.sinks.aws.sink_type import AwsType
from tailrace.sinks.kinesis.settings import KinesisSink
from tailrace.sinks.sink_type import Promises

if TYPE_CHECKING:
    from tailrace.sinks.kinesis.sink import Kinesis

# ruff: noqa: PLC0415 - botocore is an extra, and is loaded where a sink is opened


class KinesisType(AwsType[KinesisSink]):
    """A record per change in a data stream, with the key as the partition key."""

    name = "kinesis"
    title = "Amazon Kinesis Data Streams"
    settings = KinesisSink
    promises = Promises(
        delivery="at least once",
        order="per key: a key has one request at a time, and each request has it at most once",
        duplicates=(
            "A record is sent again if its answer was lost, and if the pipeline was interrupted "
            "before the answer. Kinesis does not recognise it; the id is in the payload."
        ),
        largest_message="`max_message_bytes` with the key, 1 MiB by default; larger: parked",
        batch="`batch_rows` records of different keys in a request, at most 500; `concurrency`",
    )

    def load(self) -> type[Kinesis]:
        """Import the sink."""
        from tailrace.sinks.kinesis.sink import Kinesis

        return Kinesis


SINK = KinesisType()
