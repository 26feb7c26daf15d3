"""Preflight: named checks of everything in the source that capture depends on.

`tailrace doctor` shows the findings of `run`. `facts` reads all facts once; then each check
evaluates them independently. One file per subject. Sinks have their own checks.
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
    """Read the facts of the source and run all checks. Changes nothing."""
    return examine(gather(connection, config, log_exists=log_exists(config.log.path)))


def examine(facts: Facts) -> list[Finding]:
    """The findings of every check, most severe first."""
    order = list(Severity)
    findings = [finding for check in CHECKS for finding in check.run(facts)]
    return sorted(findings, key=lambda finding: order.index(finding.severity))
