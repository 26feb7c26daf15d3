"""`Kinesis`: the sink. A message counts once Kinesis has accepted its record.

A request may be accepted in part, for example if one of its shards has no capacity left. Records
that follow a failed one are stored nevertheless, so a request has each key at most once, and the
next record of a key waits for the answer. The records of a partition key are therefore in order.

A record whose shard has no capacity is sent again after a delay. Requests that have none of its key
do not wait. If Kinesis throttles a whole request, all of them do.

A record has no attributes. Its id is where the shape of the pipeline puts it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from tailrace.sinks.aws.answers import outcomes_by_row
from tailrace.sinks.aws.checking import smaller_limit
from tailrace.sinks.aws.failures import Service
from tailrace.sinks.aws.sink import AwsSink
from tailrace.sinks.aws.text import group_of
from tailrace.sinks.groups import order_keys
from tailrace.sinks.kinesis.destination import is_stream, naming

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.finding import Finding
    from tailrace.sinks.outcome import Outcome

KINESIS = Service(
    name="Kinesis",
    client="kinesis",
    kind="stream",
    destination="the name or the ARN of a stream",
    permission="kinesis:PutRecords",
    look_up="kinesis:DescribeStreamSummary",
    create="aws kinesis create-stream --stream-name",
)
_KEY_BYTES = 128
"""Of a partition key: a longer one is replaced by a digest."""


class Kinesis(AwsSink):
    """Puts records into streams."""

    service = KINESIS

    def takes(self, destination: str) -> bool:
        """A name or an ARN."""
        return is_stream(destination)

    def sizes_of(self, batch: pa.RecordBatch) -> NDArray[np.integer]:
        """With partition keys."""
        sizes: NDArray[np.integer] = pc.binary_length(batch.column("payload")).to_numpy()
        return sizes + _KEY_BYTES

    def send_entries(
        self, client: Any, destination: str, rows: pa.RecordBatch
    ) -> Mapping[int, Outcome]:
        """One PutRecords. The answer has a result for each record, in order."""
        columns = [
            column.to_pylist()
            for column in (rows.column("payload"), order_keys(rows), rows.column("scope"))
        ]
        records = [
            {"Data": payload, "PartitionKey": group_of(key, scope)}
            for payload, key, scope in zip(*columns, strict=True)
        ]
        answer = client.put_records(Records=records, **naming(destination))
        outcomes = outcomes_by_row(
            self.service,
            answer.get("Records", ()),
            count=rows.num_rows,
            accepted="SequenceNumber",
            sender_fault=False,
            destination=destination,
        )
        # Each shard has a limit of its own: those of other keys may have capacity.
        return {row: replace(each, in_part=True) for row, each in outcomes.items()}

    def ping(self, client: Any) -> None:
        """List a stream, if there is one."""
        client.list_streams(Limit=1)

    def look_up(self, client: Any, destination: str) -> Iterator[Finding]:
        """The stream must exist. It takes records of 1 MiB unless it was changed."""
        answer = client.describe_stream_summary(**naming(destination))
        about = answer.get("StreamDescriptionSummary", {})
        most = int(about.get("MaxRecordSizeInKiB", 0)) * 1024
        yield from smaller_limit(self.service, destination, most, self._aws.max_message_bytes)
