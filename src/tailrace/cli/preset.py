"""The last step of the preset commands: prepare the database and run the settings file.

Heavy imports are inside functions, as in all commands.
"""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

import typer

from tailrace.cli.run import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.postgres.bootstrap import Initialised


def launch(
    file: Path, prepare: Callable[[Config], Initialised | None], *, metrics_lines: bool = False
) -> NoReturn:
    """Prepare the database at the first start, and run the settings file."""
    from tailrace import config
    from tailrace.access.access import check_protection
    from tailrace.run.processes import processes
    from tailrace.run.supervisor import supervise

    for name in VARIABLES:
        # The file is complete: variables for other commands must not change it.
        os.environ.pop(name, None)
    loaded = config.load(file)
    check_protection(loaded.http)
    prepared = prepare(loaded)
    if prepared is not None and prepared.slot_created:
        slot = prepared.slot
        typer.echo(f"slot {slot.name}: created at {slot.confirmed_flush_lsn}", err=True)
    specs = processes(loaded, file, metrics_lines=metrics_lines)
    raise typer.Exit(supervise(specs, loaded.data))
