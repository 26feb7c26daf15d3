"""`tailrace table`: add tables to the publication and remove them, while capture runs."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import re
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import options
from tailrace.cli.at import here_only

if TYPE_CHECKING:
    from psycopg import Connection

    from tailrace.config import Config
    from tailrace.postgres.joining import Writer
    from tailrace.postgres.names import TableName

table_app = typer.Typer(
    name="table",
    no_args_is_help=True,
    help="Add tables to the publication or remove them, while capture and pipelines run.",
)

_COLUMN = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\s",]+))\s*(?:,|$)')

File = Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")]
Table = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help='Table, written as in SQL: orders, sales.orders, "Sales"."Orders".',
        show_default=False,
    ),
]


Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        metavar="NAME,...",
        help="Publish only these columns. They must include the replica identity.",
    ),
]
Where = Annotated[
    str,
    typer.Option(
        metavar="SQL",
        help="Publish only rows that match this condition. It may use only columns of the replica "
        "identity, unless the publication has only inserts.",
    ),
]
Backfill = Annotated[
    bool,
    typer.Option(
        "--backfill",
        help="Then queue a backfill of the existing rows in every pipeline that selects the table.",
    ),
]


@table_app.command()
@here_only
def add(
    file: File,
    table: Table,
    *,
    columns: Columns = None,
    where: Where = "",
    backfill: Backfill = False,
    dsn: options.Dsn = None,
    publication: options.Publication = None,
) -> None:
    """Add a table to the publication.

    No restart is needed: capture, pipelines, schema documents and snapshots include the table from
    this commit on. The command runs the checks of `tailrace doctor` first and refuses a table on
    which UPDATE or DELETE would then fail.

    The stream does not contain rows that were written before. Take a snapshot of them, or use
    --backfill, which first waits for open transactions that write to the table.

    Altering a publication needs a role that owns the publication and the table. If the role of
    CONFIG does not, pass the connection of one that does with --dsn, or run the SQL in the error's
    hint.

    \b
    Examples:
      Add a table:
        tailrace table add tailrace.yml orders
      Publish two columns of some rows:
        tailrace table add tailrace.yml sales.orders --columns id,status --where "id > 1000"
      Add a table as its owner and send its existing rows:
        tailrace table add tailrace.yml orders --backfill --dsn "host=db dbname=shop user=owner"
    """
    from tailrace.cli.findings import show
    from tailrace.postgres.connection import connect
    from tailrace.postgres.membership import join
    from tailrace.postgres.names import TableName

    settings = options.settings(file, dsn=dsn, publication=publication)
    name = TableName.parse(table)
    with connect(
        settings.source.dsn.get_secret_value(),
        connect_timeout_s=settings.capture.connect_timeout_s,
    ) as connection:
        pipelines = _selecting_pipelines(settings, name)
        check = partial(
            _refuse_unfit_expressions, settings=settings, table=name, pipelines=pipelines
        )
        listed = _names(columns or [])
        result = join(connection, settings, name, columns=listed, where=where, approve=check)
        outcome = "added to" if result.changed else "is already in"
        typer.echo(f"{name} {outcome} publication {settings.source.publication}")
        if result.findings:
            show(result.findings, show_all=False)
        typer.echo(f"pipelines that select it: {', '.join(pipelines) or 'none'}")
        if backfill:
            _backfill(connection, settings, name, pipelines)
        elif result.changed:
            typer.echo("existing rows are not in the stream: take a snapshot, or use --backfill")


@table_app.command()
@here_only
def remove(
    file: File,
    table: Table,
    *,
    dsn: options.Dsn = None,
    publication: options.Publication = None,
) -> None:
    """Remove a table from the publication.

    Changes committed before are still delivered. Consumers keep their rows, and the table's schema
    document stays. If you add the table again later, changes made in between are missing until a
    backfill.

    \b
    Example:
      tailrace table remove tailrace.yml orders
    """
    from tailrace.postgres.connection import connect
    from tailrace.postgres.membership import leave
    from tailrace.postgres.names import TableName

    settings = options.settings(file, dsn=dsn, publication=publication)
    name = TableName.parse(table)
    with connect(
        settings.source.dsn.get_secret_value(),
        connect_timeout_s=settings.capture.connect_timeout_s,
    ) as connection:
        result = leave(connection, settings, name)
    outcome = "removed from" if result.changed else "is not in"
    typer.echo(f"{name} {outcome} publication {settings.source.publication}")


def _names(options: list[str]) -> list[str]:
    """Column names as SQL reads them: separated by commas, lower case unless quoted."""
    from tailrace.errors import ConfigError

    names = []
    for text in options:
        rest = text.strip()
        while rest:
            match = _COLUMN.match(rest)
            if match is None:
                raise ConfigError(
                    f"--columns must be a list of column names, got {text!r}",
                    hint='Write id,status or "Odd Name",id, as in SQL.',
                )
            quoted, plain = match[1], match[2]
            names.append(quoted.replace('""', '"') if quoted else plain.lower())
            rest = rest[match.end() :]
    return names


def _selecting_pipelines(settings: Config, table: TableName) -> list[str]:
    from tailrace.tables import Tables

    return [
        name
        for name, pipeline in settings.pipelines.items()
        if Tables(pipeline.tables).match(table.namespace, table.name)
    ]


def _refuse_unfit_expressions(
    connection: Connection, *, settings: Config, table: TableName, pipelines: list[str]
) -> None:
    """Refuse a table for which an expression of a pipeline is invalid: the pipeline would stop."""
    from tailrace.pipeline.expressions.compile import compile as compiled
    from tailrace.pipeline.expressions.expression import parse
    from tailrace.postgres.publication import read_publication
    from tailrace.postgres.relations import read_published

    state = read_publication(connection, settings.source.publication)
    published = read_published(connection, state) if state else []
    relations = [entry.relation for entry in published]
    for relation in relations:
        if (relation.namespace, relation.name) == (table.namespace, table.name):
            for pipeline in pipelines:
                compiled(parse(settings.pipelines[pipeline], name=pipeline), relation, {})


def _backfill(
    connection: Connection, settings: Config, table: TableName, pipelines: list[str]
) -> None:
    """Queue a backfill after the end of all transactions that wrote before the table was added."""
    from tailrace.backfill.queue import submit
    from tailrace.postgres.joining import wait_for_writers

    def report(writers: list[Writer]) -> None:
        typer.echo(f"waiting for {', '.join(map(str, writers))}", err=True)

    wait_for_writers(connection, table, threading.Event(), report)
    for pipeline in pipelines:
        order = submit(settings, pipeline, table.quoted)
        typer.echo(f"backfill {order.id}: queued in pipeline {pipeline}")
