"""Output of findings: one table per severity."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.finding import Finding

_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan", "ok": "green"}


def show(findings: Sequence[Finding], *, show_all: bool) -> None:
    """Print the findings, sorted by severity, and the number of findings per severity."""
    console = Console(highlight=False, soft_wrap=False)
    counts: dict[str, int] = {}
    for severity, group in groupby(findings, key=lambda finding: finding.severity.value):
        members = list(group)
        counts[severity] = len(members)
        if severity != "ok" or show_all:
            console.print(_table(severity, members))
    words = [f"{count} {severity}" for severity, count in counts.items()]
    console.print(Text(", ".join(words) or "no findings"))


def _table(severity: str, findings: Sequence[Finding]) -> Table:
    table = Table(
        title=Text(severity, style=_STYLES[severity]), title_justify="left", show_header=False
    )
    table.add_column("check", no_wrap=True, style=_STYLES[severity])
    table.add_column("finding", overflow="fold")
    for finding in findings:
        # Names and values come from the database: Text does not interpret markup.
        cell = Text(f"{finding.subject}: " if finding.subject else "", style="bold")
        cell.append(Text(finding.finding, style="not bold"))
        if finding.fix:
            cell.append(Text(f"\nfix: {finding.fix}", style="not bold dim"))
        table.add_row(Text(finding.check), cell)
    return table
