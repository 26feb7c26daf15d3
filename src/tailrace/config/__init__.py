"""The settings: `sections` says what there is, `file` reads it.

Not for talking to PostgreSQL: a DSN is checked by `tailrace.postgres.connection`.
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

__all__ = [
    "Backfill",
    "Backfills",
    "Capture",
    "Config",
    "Http",
    "Log",
    "Pipeline",
    "Snapshots",
    "Source",
    "Spark",
    "load",
    "section_of",
]
