"""The settings: `sections` and `pipeline` declare them, `file` reads them.

Nothing here connects to PostgreSQL: `tailrace.postgres.connection` checks a DSN.
"""

from tailrace.config.alerts import Alerts
from tailrace.config.file import absolute, load, section_of
from tailrace.config.http import Http
from tailrace.config.pipeline import Backfill, Backfills, Pipeline, Snapshots
from tailrace.config.replication import Replication
from tailrace.config.sections import Capture, Config, Log, Source
from tailrace.config.spark import Spark
from tailrace.config.telemetry import Telemetry

__all__ = [
    "Alerts",
    "Backfill",
    "Backfills",
    "Capture",
    "Config",
    "Http",
    "Log",
    "Pipeline",
    "Replication",
    "Snapshots",
    "Source",
    "Spark",
    "Telemetry",
    "absolute",
    "load",
    "section_of",
]
