"""Which tables are captured, and is the source as Tailrace needs it?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tailrace.finding import Severity, finding_document
from tailrace.observe.figure import document
from tailrace.postgres.limited import limited_session
from tailrace.postgres.preflight import run
from tailrace.postgres.published import read_tables
from tailrace.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from tailrace.console.page import Document
    from tailrace.console.system import System
    from tailrace.postgres.limited import LimitedConnection

_TABLES_S, _DOCTOR_S = 10.0, 10.0
_TIMEOUT_S = 3.0


def tables(system: System, query: Mapping[str, str]) -> Document:
    """The tables of the publication, with their size and the changes that had no row events."""
    del query
    config = system.config

    def read() -> list[dict[str, Any]]:
        with session(system) as connection:
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
        with session(system) as connection:
            findings = run(connection, system.config)
        return {
            "healthy": all(each.severity is not Severity.ERROR for each in findings),
            "checked_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "findings": [finding_document(each) for each in findings],
        }

    return system.kept("doctor", _DOCTOR_S, read)


def session(system: System) -> AbstractContextManager[LimitedConnection]:
    """A session with the source database that gives up a server that does not answer."""
    return limited_session(
        system.config.source.dsn.get_secret_value(),
        application_name="tailrace console",
        timeout_s=_TIMEOUT_S,
    )
