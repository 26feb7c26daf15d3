"""Settings of the sink `kinesis`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tailrace.settings import Bytes  # noqa: TC001 - pydantic reads the annotations
from tailrace.sinks.aws.settings import AwsSettings


class KinesisSink(AwsSettings):
    """Amazon Kinesis Data Streams."""

    type: Literal["kinesis"] = Field(description="This sink: `kinesis`.")
    stream: str = Field(
        min_length=1,
        description=(
            "Name or ARN of the stream when the pipeline has no `route`: {schema}, {table}, "
            "{operation} and {database} are replaced with escaped names."
        ),
    )
    batch_rows: int = Field(default=500, ge=1, le=500, description="Max records in one request.")
    batch_bytes: Bytes = Field(
        default=4 * 2**20,
        ge=1,
        le=10 * 2**20,
        description="Max bytes of the records in one request, without their partition keys.",
    )
    concurrency: int = Field(
        default=8,
        ge=1,
        le=1000,
        description="Max requests at a time in each lane. A key has at most one.",
    )
    max_message_bytes: Bytes = Field(
        default=2**20,
        ge=1,
        le=10 * 2**20,
        description=(
            "Larger records, with their partition key, are not sent. Raise it with the maximum "
            "record size of the stream."
        ),
    )

    @property
    def template(self) -> str:
        """The stream."""
        return self.stream
