"""The settings: `sections` says what there is, `file` reads it.

Not for talking to PostgreSQL: a DSN is checked by `tailrace.capture.connection`.
"""

from tailrace.config.file import load, section_of
from tailrace.config.kafka import Kafka, KafkaSink, ShadowSink
from tailrace.config.sections import (
    Backfill,
    Backfills,
    Capture,
    Config,
    Http,
    Log,
    NatsSink,
    NatsStream,
    Pipeline,
    Snapshots,
    Source,
    Spark,
)

__all__ = [
    "Backfill",
    "Backfills",
    "Capture",
    "Config",
    "Http",
    "Kafka",
    "KafkaSink",
    "Log",
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
