"""The `tailrace` command: one file per command, registered here with one line each.

A command is imported when it is used. It imports heavy packages inside its function, so that
`tailrace --help` stays fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup
from typer.main import get_command, get_group

from tailrace import __version__
from tailrace.errors import TailraceError

_COMMANDS = {
    "init": "init:init",
    "doctor": "doctor:doctor",
    "check": "check:check",
    "run": "run:run",
    "plan": "plan:plan",
    "apply": "plan:apply",
    "export": "plan:export",
    "bridge": "bridge:bridge",
    "creek": "creek:creek",
    "broker": "broker.command:broker_app",
    "shadow": "shadow:shadow_app",
    "capture": "capture:capture",
    "status": "status.command:status",
    "pipelines": "pipelines:pipelines",
    "pipeline": "pipeline:pipeline_app",
    "takeover": "takeover:takeover",
    "reset": "reset:reset",
    "follow": "follow:follow",
    "replicate": "replicate:replicate",
    "replica": "replica:replica",
    "watch": "watch:watch",
    "health": "health:health",
    "alert": "alert:alert_app",
    "tail": "log.tail:tail",
    "mirror": "mirror:mirror",
    "backfill": "backfill:backfill",
    "backfills": "backfill:backfills_app",
    "parked": "parked:parked_app",
    "pull": "pull:pull_app",
    "log": "log.command:log_app",
    "user": "user:user_app",
    "token": "token:token_app",
    "table": "table:table_app",
    "demo": "demo.command:demo",
    "serve": "serve:serve",
}
"""Each command's module and what it defines: a function, or a `typer.Typer` with subcommands."""
_HIDDEN = frozenset({"serve", "replicate"})


class _Commands(TyperGroup):
    """Imports a command when it is used: the settings that the others need take half a second."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All commands, in the order of the help."""
        del ctx
        return [*_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command, imported at the first call; None if there is none of that name."""
        # The hint for a wrong name comes from all of them.
        for name in [cmd_name] if cmd_name in _COMMANDS else _COMMANDS:
            if name not in self.commands:
                self.commands[name] = _load(name)
        return super().get_command(ctx, cmd_name)


def _load(name: str) -> Any:
    module, _, attribute = _COMMANDS[name].partition(":")
    command = getattr(import_module(f"tailrace.cli.{module}"), attribute)
    if isinstance(command, typer.Typer):
        return get_group(command)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name, hidden=name in _HIDDEN)(command)
    return get_command(single)


app = typer.Typer(
    name="tailrace",
    cls=_Commands,
    no_args_is_help=True,
    # Tracebacks with local variables would print the DSN.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"tailrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Capture every committed change of a PostgreSQL database and deliver it to its sinks.

    Settings come from tailrace.yml, TAILRACE_* environment variables and options; later ones win.
    Every error has a stable code, its own exit code and a hint.

    \b
    First steps:
      tailrace init --dsn "host=db dbname=shop user=tailrace" --table orders
      tailrace doctor
      tailrace capture
      tailrace tail

    `tailrace demo` runs the whole system with sample data and needs no database.
    """


def main() -> None:
    """Run the command line. A TailraceError is printed with its hint, and sets the exit code."""
    try:
        app()
    except TailraceError as error:
        report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def report(error: TailraceError) -> None:
    """Print an error to stderr. Its text is untrusted, so it is never read as markup."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble((f"{error.code}: ", "bold red"), str(error)))
    if error.hint:
        console.print(Text.assemble(("hint: ", "bold"), error.hint))
