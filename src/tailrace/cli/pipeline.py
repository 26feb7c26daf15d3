"""`tailrace pipeline`: try single pipelines, and steer running ones."""

# ruff: noqa: PLC0415 - heavy modules are loaded when a command runs, not for --help

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli import options

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from tailrace.config import Config, Pipeline

pipeline_app = typer.Typer(
    name="pipeline",
    no_args_is_help=True,
    help="Try, pause, resume, restart, rewind and skip single pipelines.",
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

    Settings are not read again: `tailrace apply` does that.
    """
    _control(config, name, "restart", reason)


Place = Annotated[
    str,
    typer.Argument(
        metavar="POSITION",
        help="The id of an event, as errors name it, such as 00000000016b3748-0: continue after "
        "it. Or now, an LSN, or a time: continue with the first transaction from there on.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@pipeline_app.command()
def rewind(
    name: Name,
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="earliest, an LSN such as 16/B374D848, a time such as 2026-01-31T12:00:00Z, or "
            "the id of the last event that is not to be delivered again.",
        ),
    ],
    yes: Yes = False,
    reason: Reason = "",
    config: options.ConfigFile = None,
) -> None:
    """Deliver changes of the log again, also while the pipeline runs; the others go on.

    Shows how many changes are delivered again, and asks.

    \b
    Examples:
      tailrace pipeline rewind orders --to 2026-01-31T12:00:00Z
      tailrace pipeline rewind orders --to earliest --reason "new index"
    """
    _move(config, name, "rewind", to, reason=reason, yes=yes)


@pipeline_app.command()
def skip(
    name: Name,
    position: Place,
    *,
    yes: Yes = False,
    reason: Reason = "",
    config: options.ConfigFile = None,
) -> None:
    """Do not deliver the changes up to a position, also of a pipeline that has failed at one.

    Shows how many changes are skipped, and asks. Skipped changes are lost to the sink unless you
    rewind: parking keeps them (docs/guides/parking.md).

    \b
    Examples:
      tailrace pipeline skip orders 00000000016b3748-0 --reason "row 17 is broken"
      tailrace pipeline skip orders now
    """
    _move(config, name, "skip", position, reason=reason, yes=yes)


@pipeline_app.command("try")
def try_(
    name: Name,
    *,
    table: Annotated[
        str, typer.Option(metavar="SCHEMA.TABLE", help="Changes of this table alone.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Max messages.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document per line.")] = False,
    send: Annotated[bool, typer.Option("--send", help="Send the last one, with its id.")] = False,
    config: options.ConfigFile = None,
) -> None:
    """Show the messages that a pipeline makes of recent changes. Sends nothing without --send.

    Reads the last 10,000 changes of its tables in the log, and applies the expressions, the shape
    and the encoding of the settings file. The pipeline need not run, and may run.
    Starts Spark if the pipeline has SQL expressions.

    \b
    Examples:
      tailrace pipeline try orders
      tailrace pipeline try orders --table public.order_items --limit 1 --json
      tailrace pipeline try orders --limit 1 --send
    """
    from tailrace.cli.log.render import escape
    from tailrace.log.reader import Log
    from tailrace.parking.control import text_field, time_text
    from tailrace.pipeline.preview import check_send, preview

    settings = options.settings(config)
    pipeline = _configured(settings, name)
    if send:
        check_send(pipeline)
    log = Log.open(settings.log.path)
    found = preview(
        pipeline,
        name,
        log,
        settings.spark,
        dsn=settings.source.dsn.get_secret_value(),
        table=table,
        limit=limit,
    )
    for row in (row for batch in found for row in batch.to_pylist()):
        document = {
            "destination": row["destination"].decode("utf-8", "replace"),
            **text_field("key", row["key"]),
            "id": row["id"].decode("utf-8", "replace"),
            "committed_at": time_text(row["committed_at"]),
            **({"headers": fields} if (fields := _headers(row)) else {}),
            **text_field("payload", row["payload"]),
        }
        if as_json:
            typer.echo(json.dumps(document, ensure_ascii=False))
            continue
        *head, payload = document.items()
        typer.echo("  ".join(f"{field}: {escape(str(value))}" for field, value in head))
        typer.echo(f"  {escape(str(payload[1]))}")
    if not found:
        typer.echo("No change in the log reaches the sink.", err=True)
    elif send:
        _send(pipeline, name, found[-1].slice(found[-1].num_rows - 1))


def _send(pipeline: Pipeline, name: str, message: pa.RecordBatch) -> None:
    from tailrace.pipeline.preview import send

    outcome = send(pipeline, name, message)
    if outcome is None:
        typer.echo("Sent: the sink has accepted it.", err=True)
        return
    typer.echo(f"Not accepted: {outcome.code}: {outcome.reason}", err=True)
    if outcome.hint:
        typer.echo(outcome.hint, err=True)
    raise typer.Exit(1)


def _headers(row: dict[str, Any]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in row["headers"] or []}


def _control(
    config: Path | None, name: str, action: Literal["pause", "resume", "restart"], reason: str
) -> None:
    from tailrace.control import ControlFile

    settings = options.settings(config)
    _configured(settings, name)
    getattr(ControlFile(settings.data, name), action)(user=getpass.getuser(), reason=reason)
    typer.echo(f"{name}: {action}")
    if not options.pipelines_run(settings):
        typer.echo("No pipelines run on this data folder. It takes effect when they do.")


def _move(
    config: Path | None,
    name: str,
    action: Literal["rewind", "skip"],
    where: str,
    *,
    reason: str,
    yes: bool,
) -> None:
    from tailrace.errors import ConfigError
    from tailrace.pipeline.moves import order_move, plan_move, result_of

    settings = options.settings(config)
    _configured(settings, name)
    move = plan_move(settings, name, action, where)
    for line in move.lines():
        typer.echo(line)
    if not yes:
        typer.confirm(f"Continue {name} after {move.to}?", abort=True)
    control = order_move(settings, move, user=getpass.getuser(), reason=reason)
    if not options.pipelines_run(settings):
        typer.echo("No pipelines run on this data folder. It takes effect when they do.")
        return
    if refusal := result_of(control):
        raise ConfigError(refusal)
    typer.echo(f"{name} continues after {move.to}.")


def _configured(settings: Config, name: str) -> Pipeline:
    from tailrace.errors import ConfigError

    if name not in settings.pipelines:
        raise ConfigError(
            f"there is no pipeline {name!r}",
            hint=f"Configured pipelines: {', '.join(settings.pipelines) or 'none'}.",
        )
    return settings.pipelines[name]
