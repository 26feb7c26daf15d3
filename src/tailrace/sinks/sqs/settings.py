"""Settings of the sink `sqs`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tailrace.settings import Bytes  # noqa: TC001 - pydantic reads the annotations
from tailrace.sinks.aws.settings import AwsSettings


class SqsSink(AwsSettings):
    """Amazon SQS."""

    type: Literal["sqs"] = Field(description="This sink: `sqs`.")
    queue: str = Field(
        min_length=1,
        description=(
            "Name or URL of the queue when the pipeline has no `route`: {schema}, {table}, "
            "{operation} and {database} are replaced with escaped names. A FIFO queue ends with "
            "`.fifo`."
        ),
    )
    batch_rows: int = Field(default=10, ge=1, le=10, description="Max messages in one request.")
    batch_bytes: Bytes = Field(
        default=960 * 2**10,
        ge=1,
        le=2**20,
        description="Max bytes of the messages in one request, without their attributes.",
    )
    max_message_bytes: Bytes = Field(
        default=2**20,
        ge=1,
        le=2**20,
        description="Larger messages, with their attributes, are not sent.",
    )

    @property
    def template(self) -> str:
        """The queue."""
        return self.queue
