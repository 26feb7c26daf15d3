"""What a benchmark hands back: rows for people, figures for machines."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.table import Table


@dataclass(slots=True)
class Report:
    """A table under construction and the figures by key."""

    title: str
    figures: dict[str, float] = field(default_factory=dict)
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, what: str, value: str, remark: str = "") -> None:
        """A line for people."""
        self.rows.append((what, value, remark))

    def figure(self, key: str, value: float, remark: str = "") -> None:
        """A figure for machines, shown to people as well."""
        self.figures[key] = round(value, 3)
        self.add(f"`{key}`", f"{value:,.3f}".rstrip("0").rstrip("."), remark)

    def table(self) -> Table:
        """All of it, to print."""
        table = Table(title=self.title, title_justify="left", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_column(style="dim")
        for row in self.rows:
            table.add_row(*row)
        return table
