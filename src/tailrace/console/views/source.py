"""Which tables are captured, and is the source as Tailrace needs it?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tailrace.finding import Severity, finding_document
from tailrace.observe.figure import document
from tailrace.postgres.connection import connect
from tailrace.postgres.preflight import run
from tailrace.postgres.published import read_tables
from tailrace.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg import Connection

    from tailrace.console.page import Document
    from tailrace.console.system import System

_TABLES_S, _DOCTOR_S = 10.0, 10.0
_CONNECT_S = 5


def tables(system: System, query: Mapping[str, str]) -> Document:
    """The tables of the publication, with their size and the changes that had no row events."""
    del query
    config = system.config

    def read() -> list[dict[str, Any]]:
        with _connection(system) as connection:
            return read_tables(connection, config.source.publication)

    found = system.kept("tables", _TABLES_S, read)
    return {
        "publication": config.source.publication,
        "tables": [
            {
                **each,
                "pipelines": [
                    name
                    for name, pipeline in config.pipelines.items()
                    if Tables(pipeline.tables).match(each["namespace"], each["name"])
                ],
            }
            for each in found
        ],
        "findings": [document(each) for each in reversed(system.figures().schema_changes)],
    }


def doctor(system: System, query: Mapping[str, str]) -> Document:
    """What `tailrace doctor` finds, at most some seconds old."""
    del query

    def read() -> Document:
        with _connection(system) as connection:
            findings = run(connection, system.config)
        return {
            "healthy": all(each.severity is not Severity.ERROR for each in findings),
            "checked_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "findings": [finding_document(each) for each in findings],
        }

    return system.kept("doctor", _DOCTOR_S, read)


def _connection(system: System) -> Connection:
    return connect(
        system.config.source.dsn.get_secret_value(),
        application_name="tailrace console",
        connect_timeout_s=min(system.config.capture.connect_timeout_s, _CONNECT_S),
    )
