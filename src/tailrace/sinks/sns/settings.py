"""Settings of the sink `sns`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tailrace.settings import Bytes  # noqa: TC001 - pydantic reads the annotations
from tailrace.sinks.aws.settings import AwsSettings


def _topic(value: str) -> str:
    if not value.startswith("arn:"):
        raise ValueError("must be an ARN such as arn:aws:sns:REGION:ACCOUNT:{schema}-{table}")
    return value


class SnsSink(AwsSettings):
    """Amazon SNS."""

    type: Literal["sns"] = Field(description="This sink: `sns`.")
    topic: Annotated[str, AfterValidator(_topic)] = Field(
        description=(
            "ARN of the topic when the pipeline has no `route`: {schema}, {table}, {operation} and "
            "{database} are replaced with escaped names. A FIFO topic ends with `.fifo`."
        ),
    )
    batch_rows: int = Field(default=10, ge=1, le=10, description="Max messages in one request.")
    batch_bytes: Bytes = Field(
        default=224 * 2**10,
        ge=1,
        le=2**20,
        description=(
            "Max bytes of the messages in one request, without their attributes. Raise it with "
            "MaximumMessageSize of the topic."
        ),
    )
    max_message_bytes: Bytes = Field(
        default=256 * 2**10,
        ge=1,
        le=2**20,
        description=(
            "Larger messages, with their attributes, are not sent. Raise it with "
            "MaximumMessageSize of the topic."
        ),
    )

    @property
    def template(self) -> str:
        """The topic."""
        return self.topic
