"""The settings: `sections` declares them, `file` reads them.

Nothing here connects to PostgreSQL: `tailrace.postgres.connection` checks a DSN.
"""

from tailrace.config.file import load, section_of
from tailrace.config.sections import (
    Backfill,
    Backfills,
    Capture,
    Config,
    Http,
    Log,
    Pipeline,
    Snapshots,
    Source,
    Spark,
)
from tailrace.jetstream.settings import NatsServer, NatsStream
from tailrace.sinks.kafka.settings import Kafka, KafkaSink, ShadowSink
from tailrace.sinks.nats.settings import NatsSink

__all__ = [
    "Backfill",
    "Backfills",
    "Capture",
    "Config",
    "Http",
    "Kafka",
    "KafkaSink",
    "Log",
    "NatsServer",
    "NatsSink",
    "NatsStream",
    "Pipeline",
    "ShadowSink",
    "Snapshots",
    "Source",
    "Spark",
    "load",
    "section_of",
]
