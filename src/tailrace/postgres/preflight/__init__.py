"""Preflight: everything about the source that capture depends on, as named checks.

`tailrace doctor` shows what `run` returns. The facts are read in one go, then each check judges
them by itself; a file here is a subject. Sinks bring their own checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.finding import Check, Finding, Severity
from tailrace.postgres.bootstrap import log_exists
from tailrace.postgres.preflight import publication, role, server, slot, tables
from tailrace.postgres.preflight.facts import Facts, gather

if TYPE_CHECKING:
    from psycopg import Connection

    from tailrace.config import Config

__all__ = ["CHECKS", "Check", "Facts", "Finding", "Severity", "examine", "run"]

CHECKS: tuple[Check, ...] = (
    *server.CHECKS,
    *role.CHECKS,
    *publication.CHECKS,
    *tables.CHECKS,
    *slot.CHECKS,
)


def run(connection: Connection, config: Config) -> list[Finding]:
    """Look at the source and say what is found. Changes nothing."""
    return examine(gather(connection, config, log_exists=log_exists(config.log.path)))


def examine(facts: Facts) -> list[Finding]:
    """The findings of every check, gravest first."""
    order = list(Severity)
    findings = [finding for check in CHECKS for finding in check.run(facts)]
    return sorted(findings, key=lambda finding: order.index(finding.severity))
