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
)
from tailrace.config.spark import Spark

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
