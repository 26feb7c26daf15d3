"""What a check says, and how a check is made.

A check is a pure function of the facts, so it runs without a server. Its name is stable: scripts
and dashboards know it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.postgres.preflight.facts import Facts

    Examine = Callable[[Facts], Iterator["Finding"]]


class Severity(enum.StrEnum):
    """How much a finding matters. Only an error keeps capture from working as promised."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence about the source, and the SQL or setting that changes it."""

    check: str = ""
    severity: Severity
    finding: str
    fix: str = ""
    subject: str = ""


def error(finding: str, fix: str, subject: str = "") -> Finding:
    """Capture can not run, or would lose or break something."""
    return Finding(severity=Severity.ERROR, finding=finding, fix=fix, subject=subject)


def warning(finding: str, fix: str, subject: str = "") -> Finding:
    """Capture works, and somebody will be surprised."""
    return Finding(severity=Severity.WARNING, finding=finding, fix=fix, subject=subject)


def info(finding: str, fix: str = "", subject: str = "") -> Finding:
    """Good to know."""
    return Finding(severity=Severity.INFO, finding=finding, fix=fix, subject=subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A named check. `passed` is its finding when there is nothing to say."""

    name: str
    passed: str
    examine: Examine
    needs: tuple[str, ...] = ()

    def run(self, facts: Facts) -> list[Finding]:
        """The findings; none at all when a fact the check needs is missing."""
        if any(getattr(facts, need) is None for need in self.needs):
            return []
        findings = [replace(finding, check=self.name) for finding in self.examine(facts)]
        passed = Finding(check=self.name, severity=Severity.OK, finding=self.passed)
        return findings or [passed]


def check(name: str, passed: str, *, needs: tuple[str, ...] = ()) -> Callable[[Examine], Check]:
    """Make a check of a generator of findings. `needs` names facts that must be there."""

    def made(examine: Examine) -> Check:
        return Check(name=name, passed=passed, examine=examine, needs=needs)

    return made
