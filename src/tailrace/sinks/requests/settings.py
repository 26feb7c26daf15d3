"""The settings that all sinks have whose destinations take requests."""

from __future__ import annotations

from pydantic import Field

from tailrace.settings import Bytes  # noqa: TC001 - pydantic reads the annotations
from tailrace.sinks.requests.limits import Limits
from tailrace.sinks.sink_type import SinkSettings


class RequestSettings(SinkSettings):
    """How messages are put into requests."""

    batch_rows: int = Field(default=1, ge=1, le=10_000, description="Max messages in one request.")
    batch_bytes: Bytes = Field(
        default=2**20, ge=1, le=2**30, description="Max bytes of the messages in one request."
    )
    linger_ms: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description=(
            "Near the end of the log, changes are collected for so long, so that requests have "
            "more messages. For `batch_rows` above 1."
        ),
    )
    concurrency: int = Field(
        default=16,
        ge=1,
        le=1000,
        description="Max requests at a time in each lane. A key has at most one.",
    )
    timeout_s: float = Field(
        default=30.0, gt=0, le=3600, description="Max seconds to wait for an answer."
    )
    max_message_bytes: Bytes = Field(
        default=5 * 2**20, ge=1, le=2**30, description="Larger messages are not sent."
    )

    @property
    def linger_s(self) -> float:
        """For how long changes are collected near the end of the log."""
        return self.linger_ms / 1000

    @property
    def limits(self) -> Limits:
        """What the requests of this sink may be."""
        return Limits(rows=self.batch_rows, bytes=self.batch_bytes, concurrency=self.concurrency)
