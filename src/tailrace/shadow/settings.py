"""Settings of the sink `shadow`, and the options of `tailrace shadow`.

The other commands of `tailrace shadow` read the settings file that it writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from tailrace.settings import Bytes, Flag, Section
from tailrace.sinks.kafka.settings import Kafka
from tailrace.sinks.sink_type import SinkSettings

DATA = Path("tailrace-data/shadow")
DATA_ENV = "TAILRACE_SHADOW_DATA"


class ShadowSink(SinkSettings, Kafka):
    """Apache Kafka as the copy of the broker's topics: `tailrace shadow`."""

    type: Literal["shadow"] = Field(description="This sink: `shadow`.")
    dsn: SecretStr = Field(
        default=SecretStr(""),
        description=(
            "Connection string of the database whose topics are copied. The sink reads names of "
            "topics from it, and records that are older than the log."
        ),
    )
    max_message_bytes: Bytes = Field(
        default=8 * 2**20,
        ge=1000,
        le=1_000_000_000,
        description="Largest record and batch. Created topics allow it.",
    )


class ShadowSettings(Section):
    """The Kafka cluster to copy to, and the names in PostgreSQL."""

    to: Annotated[str, Flag(metavar="BROKERS")] = Field(
        default="", description="Kafka cluster to copy to: host:port, separated by commas."
    )
    user: Annotated[str, Flag(metavar="NAME")] = Field(
        default="", description="User name in Kafka. KAFKA_PASSWORD has the password."
    )
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="SASL mechanism of the user."
    )
    tls: Annotated[bool, Flag(switch=True)] = Field(
        default=False, description="Connect to Kafka with TLS."
    )
    tls_ca: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None, description="Certificate authority to trust (PEM)."
    )
    tls_certificate: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None, description="Client certificate (PEM)."
    )
    tls_key: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None, description="Private key of the client certificate (PEM)."
    )
    replicas: int = Field(
        default=-1,
        ge=-1,
        description="Replication factor of topics created in Kafka. -1: the cluster's default.",
    )
    slot: Annotated[str, Flag(metavar="NAME")] = Field(
        default="tailrace_shadow",
        description="Replication slot. Created at the first start.",
    )
    publication: Annotated[str, Flag(metavar="NAME")] = Field(
        default="tailrace_shadow", description="Publication. Created at the first start."
    )
    port: int = Field(
        default=9090, ge=0, le=65535, description="Port of the HTTP endpoints. 0: none."
    )
    data: Annotated[Path, Flag(env=DATA_ENV, metavar="DIR")] = Field(
        default=DATA,
        description="Folder of the log, the checkpoint and the settings file. A restart resumes "
        "from it.",
    )

    @property
    def kafka(self) -> dict[str, object]:
        """The login of the sink, with absolute paths, for the settings file."""
        files = {
            "tls_ca": self.tls_ca,
            "tls_certificate": self.tls_certificate,
            "tls_key": self.tls_key,
        }
        return {
            "user": self.user,
            "mechanism": self.mechanism,
            "tls": self.tls,
            "replicas": self.replicas,
            **{key: str(path.absolute()) for key, path in files.items() if path is not None},
        }
