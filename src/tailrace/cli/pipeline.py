"""`tailrace pipeline`: pause, resume and restart single pipelines of a running system."""

# ruff: noqa: PLC0415 - heavy modules are loaded when a command runs, not for --help

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli import options

if TYPE_CHECKING:
    from pathlib import Path

pipeline_app = typer.Typer(
    name="pipeline", no_args_is_help=True, help="Pause, resume and restart single pipelines."
)

Name = Annotated[str, typer.Argument(help="Name of a pipeline in the settings file.")]
Reason = Annotated[str, typer.Option(help="Why; recorded in audit.jsonl of the data folder.")]


@pipeline_app.command()
def ls(*, config: options.ConfigFile = None) -> None:
    """List the pipelines with their states."""
    from tailrace.control import ControlFile
    from tailrace.run import status

    settings = options.settings(config)
    report = status.read(status.folder(settings.data), "pipelines", status.PipelinesStatus)
    up = report is not None and report.up
    known = (report.status.pipelines or {}) if report is not None else {}
    table = Table(box=None, pad_edge=False)
    for heading in ("pipeline", "state", "position", "events", "reason"):
        table.add_column(heading, no_wrap=heading != "reason")
    for name in settings.pipelines:
        control, figures = ControlFile(settings.data, name).read(), known.get(name)
        state = figures.state if up and figures is not None else "down"
        if control.paused and not up:
            state = "paused"
        reason = figures.message if up and figures is not None and figures.message else ""
        if control.paused:
            reason = " ".join(filter(None, [control.reason, f"({control.user})"]))
        position, events = (figures.position, figures.events) if figures else ("", 0)
        table.add_row(name, state, position, f"{events:,}", reason)
    Console(highlight=False, soft_wrap=True, markup=False).print(table)


@pipeline_app.command()
def pause(name: Name, *, reason: Reason = "", config: options.ConfigFile = None) -> None:
    """Stop delivering until `resume`, also over restarts. The log keeps what is not delivered.

    The present micro-batch ends in order. Other pipelines continue.
    """
    _control(config, name, "pause", reason)


@pipeline_app.command()
def resume(name: Name, *, reason: Reason = "", config: options.ConfigFile = None) -> None:
    """Continue delivering where `pause` has stopped."""
    _control(config, name, "resume", reason)


@pipeline_app.command()
def restart(name: Name, *, reason: Reason = "", config: options.ConfigFile = None) -> None:
    """Stop a pipeline's query in order and start it again; also one that has failed.

    Settings are not read again: send SIGHUP to `tailrace run` for that.
    """
    _control(config, name, "restart", reason)


def _control(
    config: Path | None, name: str, action: Literal["pause", "resume", "restart"], reason: str
) -> None:
    from tailrace.control import ControlFile
    from tailrace.errors import ConfigError

    settings = options.settings(config)
    if name not in settings.pipelines:
        raise ConfigError(
            f"there is no pipeline {name!r}",
            hint=f"Configured pipelines: {', '.join(settings.pipelines) or 'none'}.",
        )
    getattr(ControlFile(settings.data, name), action)(user=getpass.getuser(), reason=reason)
    typer.echo(f"{name}: {action}")
    if not options.pipelines_run(settings):
        typer.echo("No pipelines run on this data folder. It takes effect when they do.")
