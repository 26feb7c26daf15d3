"""Settings of the sink `nats`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tailrace.jetstream.settings import JetStreamSettings
from tailrace.sinks.sink_type import SinkSettings


class NatsSink(SinkSettings, JetStreamSettings):
    """NATS JetStream."""

    type: Literal["nats"] = Field(description="This sink: `nats`.")

    @property
    def template(self) -> str:
        """The subject."""
        return self.subject
