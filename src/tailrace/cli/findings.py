"""Findings as people and scripts read them: a table for each severity, or JSON."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.postgres.preflight import Finding

_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan", "ok": "green"}


def rows(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """The findings for `--json`."""
    return [
        {
            "check": finding.check,
            "severity": finding.severity.value,
            "subject": finding.subject,
            "finding": finding.finding,
            "fix": finding.fix,
        }
        for finding in findings
    ]


def show(findings: Sequence[Finding], *, show_all: bool) -> None:
    """Print the findings, which come gravest first, and how many there are of each severity."""
    console = Console(highlight=False, soft_wrap=False)
    counts: dict[str, int] = {}
    for severity, group in groupby(findings, key=lambda finding: finding.severity.value):
        found = list(group)
        counts[severity] = len(found)
        if severity != "ok" or show_all:
            console.print(_table(severity, found))
    words = [f"{count} {severity}" for severity, count in counts.items()]
    console.print(Text(", ".join(words) or "nothing to say"))


def _table(severity: str, findings: Sequence[Finding]) -> Table:
    table = Table(
        title=Text(severity, style=_STYLES[severity]), title_justify="left", show_header=False
    )
    table.add_column("check", no_wrap=True, style=_STYLES[severity])
    table.add_column("finding", overflow="fold")
    for finding in findings:
        # Names and values come from the database: Text, so that none of it is read as markup.
        cell = Text(f"{finding.subject}: " if finding.subject else "", style="bold")
        cell.append(Text(finding.finding, style="not bold"))
        if finding.fix:
            cell.append(Text(f"\nfix: {finding.fix}", style="not bold dim"))
        table.add_row(Text(finding.check), cell)
    return table
