"""The `tailrace` command: one file per command, registered here with one line each.

Commands import heavy packages inside their functions, so that `tailrace --help` stays fast.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tailrace import __version__
from tailrace.cli.backfill import backfill, backfills_app
from tailrace.cli.bridge import bridge
from tailrace.cli.broker.command import broker_app
from tailrace.cli.capture import capture
from tailrace.cli.check import check
from tailrace.cli.creek import creek
from tailrace.cli.demo.command import demo
from tailrace.cli.doctor import doctor
from tailrace.cli.init import init
from tailrace.cli.log.command import log_app
from tailrace.cli.log.tail import tail
from tailrace.cli.mirror import mirror
from tailrace.cli.pipelines import pipelines
from tailrace.cli.reset import reset
from tailrace.cli.run import run
from tailrace.cli.serve import serve
from tailrace.cli.shadow import shadow_app
from tailrace.cli.table import table_app
from tailrace.errors import TailraceError

app = typer.Typer(
    name="tailrace",
    no_args_is_help=True,
    # Tracebacks with local variables would print the DSN.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(init)
app.command()(doctor)
app.command()(check)
app.command()(run)
app.command()(bridge)
app.command()(creek)
app.add_typer(broker_app)
app.add_typer(shadow_app)
app.command()(capture)
app.command()(pipelines)
app.command()(reset)
app.command()(tail)
app.command()(mirror)
app.command()(backfill)
app.add_typer(backfills_app)
app.add_typer(log_app)
app.add_typer(table_app)
app.command()(demo)
app.command(hidden=True)(serve)


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
    """Capture every committed change of a PostgreSQL database and deliver it to NATS or Kafka.

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
