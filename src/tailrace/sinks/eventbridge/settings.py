"""Settings of the sink `eventbridge`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tailrace.settings import Bytes  # noqa: TC001 - pydantic reads the annotations
from tailrace.sinks.aws.settings import AwsSettings

_BUS = re.compile(r"\S+")


def _bus(value: str) -> str:
    if _BUS.fullmatch(value) is None:
        raise ValueError("must be the name or the ARN of a bus")
    return value


def _source(value: str) -> str:
    if value.startswith("aws."):
        raise ValueError("must not start with `aws.`, which is for services of AWS")
    return value


class EventBridgeSink(AwsSettings):
    """Amazon EventBridge."""

    type: Literal["eventbridge"] = Field(description="This sink: `eventbridge`.")
    bus: Annotated[str, AfterValidator(_bus)] = Field(
        default="default",
        description=(
            "Name or ARN of the event bus. {schema}, {table}, {operation} and {database} are "
            "replaced with escaped names. A `route` gives `BUS DETAIL-TYPE`."
        ),
    )
    detail_type: str = Field(
        default="{schema}.{table}.{operation}",
        min_length=1,
        description="Detail type of events, with the same placeholders.",
    )
    source: Annotated[str, AfterValidator(_source)] = Field(
        default="tailrace", min_length=1, max_length=256, description="Source of events."
    )
    batch_rows: int = Field(default=10, ge=1, le=10, description="Max events in one request.")
    batch_bytes: Bytes = Field(
        default=900_000,
        ge=1,
        le=2**20,
        description="Max bytes of the messages in one request.",
    )
    max_message_bytes: Bytes = Field(
        default=1_000_000,
        ge=1,
        le=2**20,
        description="Larger events, with their detail type, are not sent.",
    )

    @property
    def template(self) -> str:
        """The bus and the detail type."""
        return f"{self.bus} {self.detail_type}"
