"""The settings of a subcommand of `tailrace broker`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cli import options

if TYPE_CHECKING:
    from pathlib import Path

    import typer

    from tailrace.config import Config


def chosen(context: typer.Context, config: Path | None, dsn: str | None) -> Config:
    """The settings from the options here, or from those of `tailrace broker`."""
    above = context.obj or options.Chosen()
    return options.settings(config or above.config, dsn=dsn or above.dsn)
