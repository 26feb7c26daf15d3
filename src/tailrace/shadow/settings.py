"""Settings of the sink `shadow`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from tailrace.settings import Bytes  # noqa: TC001 - pydantic reads the annotations
from tailrace.sinks.kafka.settings import Kafka
from tailrace.sinks.sink_type import SinkSettings


class ShadowSink(SinkSettings, Kafka):
    """Apache Kafka as the copy of the broker's topics: `tailrace shadow`."""

    type: Literal["shadow"] = Field(description="This sink: `shadow`.")
    dsn: SecretStr = Field(
        default=SecretStr(""),
        description=(
            "Connection string of the database whose topics are copied: names of topics, and "
            "records that are older than the log."
        ),
    )
    max_message_bytes: Bytes = Field(
        default=8 * 2**20,
        ge=1000,
        le=1_000_000_000,
        description="Largest record and batch. Topics that are made allow it.",
    )
