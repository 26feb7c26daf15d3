"""How commands that are presets go on once their settings file is written: as `tailrace run` does.

Heavy imports are inside, as in all commands.
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
    """Prepare the database where that is due, and run what the file names."""
    from tailrace import config
    from tailrace.run.processes import processes
    from tailrace.run.supervisor import supervise

    for name in VARIABLES:
        # The file says it all: a variable meant for other commands must not reach into it.
        os.environ.pop(name, None)
    loaded = config.load(file)
    made = prepare(loaded)
    if made is not None and made.slot_created:
        typer.echo(f"slot {made.slot.name}: created, at {made.slot.confirmed_flush_lsn}", err=True)
    specs = processes(loaded, file, metrics_lines=metrics_lines)
    raise typer.Exit(supervise(specs, loaded.data))
