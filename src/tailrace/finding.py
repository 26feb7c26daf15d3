"""Findings and checks: for `tailrace doctor`, `tailrace check` and `tailrace table add`.

A check is a pure function over facts, so it runs without a server. The names of checks are stable:
scripts and dashboards use them.
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
    """The importance of a finding. Only an error prevents capture from working as documented."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact about the source, and the SQL or setting that changes it (`fix`)."""

    check: str = ""
    severity: Severity
    finding: str
    fix: str = ""
    subject: str = ""


def finding_document(finding: Finding) -> dict[str, str]:
    """A finding as JSON."""
    return {
        "check": finding.check,
        "severity": finding.severity.value,
        "subject": finding.subject,
        "finding": finding.finding,
        "fix": finding.fix,
    }


def error(finding: str, fix: str, subject: str = "") -> Finding:
    """A finding because of which capture cannot run, or would lose changes or break writes."""
    return Finding(severity=Severity.ERROR, finding=finding, fix=fix, subject=subject)


def warning(finding: str, fix: str, subject: str = "") -> Finding:
    """A finding with which capture works, but not as most users expect."""
    return Finding(severity=Severity.WARNING, finding=finding, fix=fix, subject=subject)


def info(finding: str, fix: str = "", subject: str = "") -> Finding:
    """A finding that needs no action."""
    return Finding(severity=Severity.INFO, finding=finding, fix=fix, subject=subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A named check. `passed` is its finding if everything is in order."""

    name: str
    passed: str
    examine: Examine
    needs: tuple[str, ...] = ()

    def run(self, facts: Facts) -> list[Finding]:
        """The findings; empty if a fact that the check needs is missing."""
        if any(getattr(facts, need) is None for need in self.needs):
            return []
        findings = [replace(finding, check=self.name) for finding in self.examine(facts)]
        passed = Finding(check=self.name, severity=Severity.OK, finding=self.passed)
        return findings or [passed]


def check(name: str, passed: str, *, needs: tuple[str, ...] = ()) -> Callable[[Examine], Check]:
    """Turn a generator of findings into a check. `needs` names facts that must exist."""

    def decorate(examine: Examine) -> Check:
        return Check(name=name, passed=passed, examine=examine, needs=needs)

    return decorate
