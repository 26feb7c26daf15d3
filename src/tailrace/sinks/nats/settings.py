"""Settings of the sink `nats`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tailrace.jetstream.settings import NatsServer, NatsStream


class NatsSink(NatsServer):
    """NATS JetStream."""

    type: Literal["nats"] = Field(description="This sink: `nats`.")
    stream: NatsStream = Field(default=NatsStream(), description=NatsStream.__doc__)
    subject: str = Field(
        default="cdc.{table}.{operation}",
        description=(
            "Where a message goes when the pipeline has no `route`. {schema}, {table}, {operation} "
            "and {database} are replaced, escaped so that no two names meet."
        ),
    )
    max_outstanding: int = Field(
        default=4000, ge=1, description="Messages on their way before acks are waited for."
    )
    atomic: Literal["none", "transaction"] = Field(
        default="none",
        description=(
            "`transaction`: the changes of a source transaction appear together or not at all, up "
            "to 1,000 (nats-server 2.12)."
        ),
    )
