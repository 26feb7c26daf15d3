"""`tailrace parked`: list, show, retry, drop and export messages that a sink did not accept.

The commands write orders to the data folder, or ask the system at `--at`. The running pipelines
carry them out.
"""

# ruff: noqa: PLC0415 - heavy modules are loaded when a command runs, not for --help

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli import options  # noqa: TC001 - typer reads the annotations
from tailrace.cli.at import At
from tailrace.cli.model_options import with_options
from tailrace.console.operations import path_of
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.console.operations import Operations
    from tailrace.console.page import Document

_PAGE = 1000
"""Messages per request."""

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


class _Filter(NamedTuple):
    """Which messages, as the options say."""

    ids: list[str] | None
    key: str | None
    destination: str
    code: str

    def queries(self) -> list[dict[str, object]]:
        """Parameters of the API, which has one id per request."""
        others = {"key": self.key, "destination": self.destination, "code": self.code}
        return [{"id": each, **others} for each in self.ids or [""]]

    def body(self, *, every: bool) -> dict[str, Any]:
        """The same for an order. Raises ConfigError without a choice."""
        chosen = {name: value for name, value in self._asdict().items() if value}
        if every == bool(chosen):
            raise ConfigError(
                "say which messages: --id, --key, --destination or --code, or else --all"
            )
        return chosen | ({"all": True} if every else {})


class _Parked:
    """The parked messages of a pipeline."""

    def __init__(self, system: Operations, pipeline: str) -> None:
        self._system = system
        self._path = ("parked", pipeline)

    def page(self, query: dict[str, object], *, after: int = 0, limit: int) -> Document:
        """The document of a page of the list; with any number of messages."""
        messages: list[Any] = []
        following: int | None = after
        while True:
            part = {"after": following, "limit": min(limit - len(messages), _PAGE)}
            document = self._system.get(path_of(*self._path), query | part)
            messages += document["messages"]
            following = document["next"]
            if following is None or len(messages) >= limit:
                return {**document, "messages": messages}

    def whole(self, number: int) -> Document | None:
        """A message with its payload; None if it is no longer parked."""
        try:
            found = self._system.get(path_of(*self._path, number), {"whole": "true"})
        except ConfigError as error:
            if str(error).startswith("there is no parked message"):
                return None
            raise
        message: Document = found["message"]
        return message

    def all(self, query: dict[str, object]) -> Iterator[Document]:
        """The selected messages with their payloads, in the order of parking."""
        following: int | None = 0
        while following is not None:
            part = {"after": following, "limit": _PAGE, "whole": "true"}
            document = self._system.get(path_of(*self._path), query | part)
            yield from document["messages"]
            following = document["next"]

    def order(self, action: str, body: dict[str, Any], *, ask: bool) -> None:
        """Have messages retried or dropped."""
        path = path_of(*self._path, action)
        if ask:
            effect = self._system.effect(path, body)
            for line in filter(None, (*effect.lines, effect.warning)):
                typer.echo(line)
            typer.confirm(f"{action.capitalize()} them?", abort=True)
            body = {**body, **effect.resolved}
        done = self._system.perform(path, body)
        typer.echo(f"{done['id']}: {done['matched']:,} messages")
        if not done["pipelines_run"]:
            typer.echo("No pipelines run on this data folder. The order waits until they do.")


@parked_app.command()
@with_options(At)
def ls(
    pipeline: Pipeline,
    *,
    at: At,
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
      tailrace parked ls orders --at https://db1.example.com:9090 --token-file token
    """
    parked = _Parked(at.system(config), pipeline)
    queries = _Filter(id, key, destination, code).queries()
    pages = [parked.page(query, after=after, limit=limit) for query in queries]
    found = {each["number"]: each for page in pages for each in page["messages"]}
    messages = [found[number] for number in sorted(found)][:limit]
    if as_json:
        typer.echo(json.dumps(messages, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("number", "attempts"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("state", "id", "destination", "key", "code", "reason"):
        table.add_column(heading, no_wrap=heading != "reason")
    for each in messages:
        error = each["last_error"]
        table.add_row(
            str(each["number"]), str(each["attempts"]), each["state"], each["id"],
            each["destination"], str(each.get("key") or ""), error["code"], error["reason"],
        )  # fmt: skip
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if messages:
        console.print(table)
    totals = pages[0]["totals"]
    waiting = f", {totals['held']:,} of them wait for others" if totals["held"] else ""
    console.print(f"{totals['messages']:,} parked, {totals['bytes'] / 1e6:,.1f} MB{waiting}")
    if len(found) > limit or any(page["next"] is not None for page in pages):
        console.print(f"More: --after {messages[-1]['number']}")


@parked_app.command()
@with_options(At)
def show(
    pipeline: Pipeline,
    message: Annotated[str, typer.Argument(help="Id of a message, or its number.")],
    *,
    at: At,
    config: options.ConfigFile = None,
) -> None:
    """Print a parked message with its payload and its errors, as JSON."""
    parked = _Parked(at.system(config), pipeline)
    named = parked.page({"id": message}, limit=1)["messages"]
    number = named[0]["number"] if named else int(message) if message.isdecimal() else None
    document = None if number is None else parked.whole(number)
    if document is None:
        raise ConfigError(
            f"message {message} is not parked", hint=f"List them: tailrace parked ls {pipeline}"
        )
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


@parked_app.command()
@with_options(At)
def retry(
    pipeline: Pipeline,
    *,
    at: At,
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
    body = _Filter(id, key, destination, code).body(every=every)
    _Parked(at.system(config), pipeline).order("retry", body, ask=False)


@parked_app.command()
@with_options(At)
def drop(
    pipeline: Pipeline,
    *,
    at: At,
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
    body = _Filter(id, key, destination, code).body(every=every)
    _Parked(at.system(config), pipeline).order("drop", body, ask=not yes)


@parked_app.command()
@with_options(At)
def orders(
    pipeline: Pipeline,
    *,
    at: At,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: options.ConfigFile = None,
) -> None:
    """List the retries and drops that were carried out, and what became of their messages."""
    found = _Parked(at.system(config), pipeline).page({}, limit=1)["orders"]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("order", "messages", "delivered", "failed again", "waiting"):
        table.add_column(heading, justify="left" if heading == "order" else "right")
    for each in found:
        figures = (each["matched"], each["delivered"], each["failed"], each["waiting"])
        table.add_row(each["id"], *(f"{figure:,}" for figure in figures))
    Console(highlight=False, soft_wrap=True).print(table)


@parked_app.command()
@with_options(At)
def export(
    pipeline: Pipeline,
    *,
    at: At,
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

    parked = _Parked(at.system(config), pipeline)
    queries = _Filter(id, key, destination, code).queries()
    lines = (orjson.dumps(each) + b"\n" for query in queries for each in parked.all(query))
    if to is None:
        sys.stdout.buffer.writelines(lines)
        return
    with private.create_file(to) as file:
        count = 0
        for line in lines:
            file.write(line)
            count += 1
    typer.echo(f"{count:,} messages in {to}")
