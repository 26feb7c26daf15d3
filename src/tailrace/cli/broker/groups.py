"""`tailrace broker groups`: consumer groups with their lag, and a reset of their offsets."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli import options  # noqa: TC001 - typer reads the annotations
from tailrace.cli.broker.database import chosen

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tailrace.broker.resets import Order
    from tailrace.config import Config
    from tailrace.observe.broker import GroupFigures
    from tailrace.postgres.limited import LimitedConnection

groups_app = typer.Typer(
    name="groups", no_args_is_help=True, help="List consumer groups, and reset their offsets."
)
_TIMEOUT_S = 10.0

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the group.", show_default=False)
]


@groups_app.command("list")
def list_groups(
    context: typer.Context,
    group: Annotated[
        str, typer.Argument(metavar="[GROUP]", help="Only this group, with its partitions.")
    ] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """List groups with their state, members and lag. With GROUP, each of its partitions.

    The lag is the number of records from the committed offset on. Members are known while a broker
    serves the database.

    \b
    Examples:
      tailrace broker groups list
      tailrace broker groups list billing
      tailrace broker groups list --json
    """
    from tailrace.broker.tables.inspection import inspect
    from tailrace.errors import ConfigError
    from tailrace.observe.figure import document

    with _session(chosen(context, config, dsn)) as connection:
        figures = inspect(connection)
    found = [each for each in figures.groups if group in ("", each.name)]
    if not figures.complete:
        typer.echo("There are more offsets than the command reads; the last are missing.", err=True)
    if group and not found:
        raise ConfigError(f"there is no group {group!r}")
    if as_json:
        typer.echo(orjson.dumps([document(each) for each in found]).decode())
        return
    table = _partitions(found[0]) if group else _overview(found)
    Console(highlight=False, soft_wrap=True, markup=False).print(table)


@groups_app.command()
def reset(
    context: typer.Context,
    group: Group,
    *,
    to: Annotated[
        str,
        typer.Option(metavar="WHERE", help="earliest, latest or an offset.", show_default=False),
    ],
    topic: Annotated[
        str,
        typer.Option(
            metavar="TOPIC[:PARTITION]",
            help="Only this topic, or one partition of it. Default: all that the group has offsets "
            "of.",
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Annotated[
        str, typer.Option(help="Why; recorded in audit.jsonl of the data folder.")
    ] = "",
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """Move the committed offsets of a group, which then reads from there.

    Shows the old and the new offset of each partition, and asks. The group must have no members, so
    stop its consumers first. An offset outside of a partition becomes its nearest end.

    \b
    Examples:
      tailrace broker groups reset billing --to earliest --dry-run
      tailrace broker groups reset billing --to latest --topic orders
      tailrace broker groups reset billing --to 1200 --topic orders:2 --reason "bad invoices"
    """
    from tailrace.broker import resets

    settings, order = chosen(context, config, dsn), _order(group, to, topic)
    with _session(settings) as connection:
        planned = resets.plan(connection, order)
    for line in planned.lines():
        typer.echo(line)
    if dry_run:
        return
    if not yes:
        typer.confirm(f"Reset the offsets of {group}?", abort=True)
    with _session(settings) as connection:
        resets.perform(
            connection, order, shown=resets.parse_offsets(planned.offsets()),
            data=settings.data, user=getpass.getuser(), reason=reason,
        )  # fmt: skip
    typer.echo(f"group {group}: offsets reset")


def _order(group: str, to: str, topic: str) -> Order:
    from tailrace.broker import resets
    from tailrace.errors import ConfigError

    try:
        target = resets.parse_target(to)
    except ValueError as error:
        raise ConfigError(f"--to {error}") from error
    try:
        name, partition = resets.parse_topic(topic)
    except ValueError as error:
        raise ConfigError(f"--topic {error}") from error
    return resets.Order(group=group, to=target, topic=name, partition=partition)


def _session(settings: Config) -> AbstractContextManager[LimitedConnection]:
    from tailrace.postgres.limited import limited_session

    return limited_session(
        settings.source.dsn.get_secret_value(),
        application_name="tailrace broker groups",
        timeout_s=_TIMEOUT_S,
    )


def _overview(groups: list[GroupFigures]) -> Table:
    table = _table("group", "state", "members", "partitions", "lag")
    for each in groups:
        counts = (f"{len(each.members):,}", f"{len(each.offsets):,}", f"{each.lag:,}")
        table.add_row(each.name, each.state, *counts)
    return table


def _partitions(group: GroupFigures) -> Table:
    table = _table("topic", "partition", "committed", "end", "lag", "committed at")
    for each in group.offsets:
        numbers = (each.partition, each.committed_offset, each.end_offset, each.lag)
        at = each.committed_at.isoformat(sep=" ", timespec="seconds")
        table.add_row(each.topic, *map(str, numbers), at)
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table
