"""`tailrace pipeline`: try single pipelines, and steer running ones."""

# ruff: noqa: PLC0415 - heavy modules are loaded when a command runs, not for --help

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli import options
from tailrace.cli.at import At, here_only
from tailrace.cli.model_options import with_options
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.config import Config, Pipeline
    from tailrace.console.operations import Operations

pipeline_app = typer.Typer(
    name="pipeline",
    no_args_is_help=True,
    help="Try, pause, resume, restart, rewind and skip single pipelines.",
)

_MOVE_S, _POLL_S = 30.0, 0.25

Name = Annotated[str, typer.Argument(help="Name of a pipeline in the settings file.")]
Reason = Annotated[str, typer.Option(help="Why; recorded in audit.jsonl of the data folder.")]


@pipeline_app.command()
@with_options(At)
def ls(*, at: At, config: options.ConfigFile = None) -> None:
    """List the pipelines with their states."""
    table = Table(box=None, pad_edge=False)
    for heading in ("pipeline", "state", "position", "events", "reason"):
        table.add_column(heading, no_wrap=heading != "reason")
    for each in at.system(config).get("/pipelines")["pipelines"]:
        control, up = each["control"], each["state"] != "down"
        state = "paused" if control["paused"] and not up else each["state"]
        reason = each["message"] if up else ""
        if control["paused"]:
            reason = " ".join(filter(None, [control["pause_reason"], f"({control['paused_by']})"]))
        table.add_row(each["name"], state, each["position"], f"{each['events']:,}", reason)
    Console(highlight=False, soft_wrap=True, markup=False).print(table)


@pipeline_app.command()
@with_options(At)
def pause(name: Name, *, at: At, reason: Reason = "", config: options.ConfigFile = None) -> None:
    """Stop delivering until `resume`, also over restarts. The log keeps what is not delivered.

    The present micro-batch ends in order. Other pipelines continue.
    """
    _control(at.system(config), name, "pause", reason)


@pipeline_app.command()
@with_options(At)
def resume(name: Name, *, at: At, reason: Reason = "", config: options.ConfigFile = None) -> None:
    """Continue delivering where `pause` has stopped."""
    _control(at.system(config), name, "resume", reason)


@pipeline_app.command()
@with_options(At)
def restart(name: Name, *, at: At, reason: Reason = "", config: options.ConfigFile = None) -> None:
    """Stop a pipeline's query in order and start it again; also one that has failed.

    Settings are not read again: `tailrace apply` does that.
    """
    _control(at.system(config), name, "restart", reason)


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
@with_options(At)
def rewind(
    name: Name,
    *,
    at: At,
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
    _move(at.system(config), name, "rewind", to, reason=reason, yes=yes)


@pipeline_app.command()
@with_options(At)
def skip(
    name: Name,
    position: Place,
    *,
    at: At,
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
    _move(at.system(config), name, "skip", position, reason=reason, yes=yes)


@pipeline_app.command("try")
@here_only
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


def _control(system: Operations, name: str, action: str, reason: str) -> None:
    from tailrace.console.operations import path_of

    done = system.perform(path_of("pipelines", name, action), {"reason": reason})
    typer.echo(f"{name}: {action}")
    if not done["pipelines_run"]:
        typer.echo("No pipelines run on this data folder. It takes effect when they do.")


def _move(
    system: Operations, name: str, action: str, where: str, *, reason: str, yes: bool
) -> None:
    from tailrace.console.operations import path_of

    path, body = path_of("pipelines", name, action), {"to": where, "reason": reason}
    effect = system.effect(path, body)
    for line in filter(None, (*effect.lines, effect.warning)):
        typer.echo(line)
    if not yes:
        typer.confirm(f"{action.capitalize()} {name}?", abort=True)
    done = system.perform(path, {**body, **effect.resolved})
    if not done["pipelines_run"]:
        typer.echo(f"{name}: {action} is ordered")
        return
    if refusal := _refusal(system, name, done["moves"]):
        raise ConfigError(refusal)
    typer.echo(f"{name} continues after {done['position']}.")


def _refusal(system: Operations, name: str, moves: int) -> str:
    """Wait until the runner of the pipeline has moved it; why not, if it has not."""
    from tailrace.console.operations import path_of

    for _ in range(round(_MOVE_S / _POLL_S)):
        control = system.get(path_of("pipelines", name))["control"]
        if control["moved"] >= moves:
            return str(control["refusal"])
        time.sleep(_POLL_S)
    return f"the pipeline has not stopped within {_MOVE_S:g} s; it moves when it does"


def _configured(settings: Config, name: str) -> Pipeline:
    if name not in settings.pipelines:
        raise ConfigError(
            f"there is no pipeline {name!r}",
            hint=f"Configured pipelines: {', '.join(settings.pipelines) or 'none'}.",
        )
    return settings.pipelines[name]
