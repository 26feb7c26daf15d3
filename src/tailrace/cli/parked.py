"""`tailrace parked`: list, show, retry, drop and export messages that a sink did not accept.

The commands write orders to the data folder. The running pipelines carry them out.
"""

# ruff: noqa: PLC0415 - heavy modules are loaded when a command runs, not for --help

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli import options

if TYPE_CHECKING:
    from tailrace.parking.order import Action
    from tailrace.parking.selection import Selection

parked_app = typer.Typer(
    name="parked", no_args_is_help=True, help="Messages that a sink did not accept."
)

Pipeline = Annotated[str, typer.Argument(help="Name of a pipeline in the settings file.")]
Ids = Annotated[
    list[str] | None, typer.Option("--id", help="Id of a message, as consumers see it. Repeatable.")
]
Key = Annotated[str | None, typer.Option(help="Key of messages, as text.")]
Destination = Annotated[
    str, typer.Option(help="Destination of messages; wildcards: * and ?, as in '/orders*'.")
]
Code = Annotated[str, typer.Option(help="Code of the last error, such as HTTP_422 or HELD.")]
All = Annotated[bool, typer.Option("--all", help="All parked messages of the pipeline.")]


def _selection(ids: list[str] | None, key: str | None, destination: str, code: str) -> Selection:
    from tailrace.parking.selection import Selection

    return Selection(ids=tuple(ids or ()), key=key, destination=destination, code=code)


@parked_app.command()
def ls(
    pipeline: Pipeline,
    *,
    id: Ids = None,  # noqa: A002 - its name
    key: Key = None,
    destination: Destination = "",
    code: Code = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Max messages to list.")] = 50,
    after: Annotated[int, typer.Option(min=0, help="List messages after this number.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: options.ConfigFile = None,
) -> None:
    """List parked messages, oldest first, a page at a time.

    `HELD` messages were not sent: an earlier message of their key is parked.

    \b
    Examples:
      tailrace parked ls orders
      tailrace parked ls orders --code HTTP_422 --destination '/refunds*'
    """
    from tailrace.parking import control

    selection = _selection(id, key, destination, code)
    with control.listing(options.settings(config), pipeline) as listing:
        page = listing.page(selection, after=after, limit=limit)
        totals = listing.totals()
        more = bool(page) and bool(listing.page(selection, after=page[-1].seq, limit=1))
    if as_json:
        typer.echo(json.dumps([control.message_document(each) for each in page], indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("number", "attempts"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("state", "id", "destination", "key", "code", "reason"):
        table.add_column(heading, no_wrap=heading != "reason")
    for message in page:
        document = control.message_document(message)
        table.add_row(
            str(message.seq), str(message.attempts), document["state"], message.id,
            message.destination, str(document.get("key") or ""), message.code, message.reason,
        )  # fmt: skip
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if page:
        console.print(table)
    waiting = f", {totals.held:,} of them wait for others" if totals.held else ""
    console.print(f"{totals.messages:,} parked, {totals.bytes / 1e6:,.1f} MB{waiting}")
    if more:
        console.print(f"More: --after {page[-1].seq}")


@parked_app.command()
def show(
    pipeline: Pipeline,
    message: Annotated[str, typer.Argument(help="Id of a message, or its number.")],
    *,
    config: options.ConfigFile = None,
) -> None:
    """Print a parked message with its payload and its errors, as JSON."""
    from tailrace.errors import ConfigError
    from tailrace.parking import control
    from tailrace.parking.selection import Selection

    with control.listing(options.settings(config), pipeline) as listing:
        found = listing.page(Selection(ids=(message,)), limit=1)
        if not found and message.isdecimal():
            number = int(message)
            found = listing.page(Selection(upto=number), after=number - 1, limit=1)
        if not found:
            raise ConfigError(
                f"message {message} is not parked", hint=f"List them: tailrace parked ls {pipeline}"
            )
        document = control.message_document(found[0], listing.payload(found[0].seq))
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


@parked_app.command()
def retry(
    pipeline: Pipeline,
    *,
    id: Ids = None,  # noqa: A002 - its name
    key: Key = None,
    destination: Destination = "",
    code: Code = "",
    every: All = False,
    config: options.ConfigFile = None,
) -> None:
    """Send parked messages again, in order, through the running pipeline.

    With `park: key` the other parked messages of the same keys are sent with them. A message that
    is not accepted stays parked. `tailrace parked orders` shows what became of them.

    \b
    Examples:
      tailrace parked retry orders --all
      tailrace parked retry orders --key 4711
    """
    selection = _selection(id, key, destination, code)
    _submit(config, pipeline, "retry", selection, every=every)


@parked_app.command()
def drop(
    pipeline: Pipeline,
    *,
    id: Ids = None,  # noqa: A002 - its name
    key: Key = None,
    destination: Destination = "",
    code: Code = "",
    every: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: options.ConfigFile = None,
) -> None:
    """Delete parked messages: they are never delivered. `export` keeps a copy.

    Messages of the same keys that wait for them stay parked until they are retried.
    """
    selection = _selection(id, key, destination, code)
    _submit(config, pipeline, "drop", selection, every=every, ask=not yes)


def _submit(
    config: Any,
    pipeline: str,
    action: Action,
    selection: Selection,
    *,
    every: bool,
    ask: bool = False,
) -> None:
    from tailrace.errors import ConfigError
    from tailrace.parking import control

    settings = options.settings(config)
    if every == bool(control.document_of(selection)):
        raise ConfigError(
            "say which messages: --id, --key, --destination or --code, or else --all",
            hint=f"List them: tailrace parked ls {pipeline}",
        )
    if ask:
        with control.listing(settings, pipeline) as listing:
            count = listing.count(selection)
        typer.confirm(f"{count:,} messages will never be delivered. Drop them?", abort=True)
    order, matched = control.submit(settings, pipeline, action, selection)
    typer.echo(f"{order}: {matched:,} messages")
    if not options.pipelines_run(settings):
        typer.echo("No pipelines run on this data folder. The order waits until they do.")


@parked_app.command()
def orders(
    pipeline: Pipeline,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: options.ConfigFile = None,
) -> None:
    """List the retries and drops that were carried out, and what became of their messages."""
    from dataclasses import asdict

    from tailrace.parking import control

    with control.listing(options.settings(config), pipeline) as listing:
        found = listing.orders()
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("order", "messages", "delivered", "failed again", "waiting"):
        table.add_column(heading, justify="left" if heading == "order" else "right")
    for each in found:
        figures = (each.matched, each.delivered, each.failed, each.waiting)
        table.add_row(each.id, *(f"{figure:,}" for figure in figures))
    Console(highlight=False, soft_wrap=True).print(table)


@parked_app.command()
def export(
    pipeline: Pipeline,
    *,
    to: Annotated[Path | None, typer.Option(help="File to write. Empty: standard output.")] = None,
    id: Ids = None,  # noqa: A002 - its name
    key: Key = None,
    destination: Destination = "",
    code: Code = "",
    config: options.ConfigFile = None,
) -> None:
    """Write parked messages with their payloads as JSON, one per line. They stay parked."""
    import orjson

    from tailrace import private
    from tailrace.parking import control

    selection = _selection(id, key, destination, code)
    with control.listing(options.settings(config), pipeline) as listing:
        lines = (orjson.dumps(each) + b"\n" for each in control.export(listing, selection))
        if to is None:
            sys.stdout.buffer.writelines(lines)
            return
        with private.create_file(to) as file:
            count = 0
            for line in lines:
                file.write(line)
                count += 1
    typer.echo(f"{count:,} messages in {to}")
