"""`tailrace table`: tables join the publication and leave it, while everything runs."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import re
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import options

if TYPE_CHECKING:
    from psycopg import Connection

    from tailrace.config import Config
    from tailrace.postgres.joining import Writer
    from tailrace.postgres.publication import TableName

table_app = typer.Typer(
    name="table",
    no_args_is_help=True,
    help="Let tables join the publication or leave it, while everything runs.",
)

_COLUMN = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\s",]+))\s*(?:,|$)')

File = Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")]
Table = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help='As in SQL: orders, sales.orders, "Sales"."Orders".',
        show_default=False,
    ),
]


@table_app.command()
def add(
    file: File,
    table: Table,
    *,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--columns",
            metavar="NAME,...",
            help="Publish these columns alone. They have to include the replica identity.",
        ),
    ] = None,
    where: Annotated[
        str,
        typer.Option(
            metavar="SQL",
            help="Publish these rows alone. Over columns of the replica identity, unless the "
            "publication holds nothing but inserts.",
        ),
    ] = "",
    backfill: Annotated[
        bool,
        typer.Option(
            "--backfill",
            help="Then send the rows that are there already, through every pipeline that takes "
            "the table.",
        ),
    ] = False,
    dsn: options.Dsn = None,
    publication: options.Publication = None,
) -> None:
    """Add a table to the publication.

    Nothing has to be started again: capture, pipelines, schema documents and snapshots take the
    table up by themselves. The checks are those of `tailrace doctor`; a table that would then
    refuse its own UPDATE or DELETE does not join. What was written before is not in the stream:
    ask for a snapshot, or use --backfill, which first waits for those who are writing to the table
    right now.

    A publication is altered by a role that owns it and the table. Where that is another one than
    the role of CONFIG, give its connection with --dsn, or run the SQL that the error names.

    \b
    Examples:
      tailrace table add tailrace.yml orders
      tailrace table add tailrace.yml sales.orders --columns id,status --where "id > 1000"
      tailrace table add tailrace.yml orders --backfill --dsn "host=db dbname=shop user=owner"
    """
    from tailrace.cli.findings import show
    from tailrace.postgres.connection import connect
    from tailrace.postgres.membership import join
    from tailrace.postgres.publication import TableName

    settings = options.settings(file, dsn=dsn, publication=publication)
    name = TableName.parse(table)
    with connect(
        settings.source.dsn.get_secret_value(),
        connect_timeout_s=settings.capture.connect_timeout_s,
    ) as connection:
        takers = _takers(settings, name)
        change = join(
            connection,
            settings,
            name,
            columns=_names(columns or []),
            where=where,
            approve=partial(_refuse_misfits, settings=settings, table=name, pipelines=takers),
        )
        said = "joined" if change.made else "was already in"
        typer.echo(f"{name} {said} publication {settings.source.publication}")
        if change.findings:
            show(change.findings, show_all=False)
        typer.echo(f"pipelines that take it: {', '.join(takers) or 'none'}")
        if backfill:
            _backfill(connection, settings, name, takers)
        elif change.made:
            typer.echo("what it holds already is not in the stream: take a snapshot, or --backfill")


@table_app.command()
def remove(
    file: File,
    table: Table,
    *,
    dsn: options.Dsn = None,
    publication: options.Publication = None,
) -> None:
    """Take a table out of the publication.

    What was committed before is still delivered. Consumers keep the rows they have, and the
    table's schema document stays. If it comes back later, what changed in between is missing until
    a backfill.

    \b
    Example:
      tailrace table remove tailrace.yml orders
    """
    from tailrace.postgres.connection import connect
    from tailrace.postgres.membership import leave
    from tailrace.postgres.publication import TableName

    settings = options.settings(file, dsn=dsn, publication=publication)
    name = TableName.parse(table)
    with connect(
        settings.source.dsn.get_secret_value(),
        connect_timeout_s=settings.capture.connect_timeout_s,
    ) as connection:
        change = leave(connection, settings, name)
    said = "left" if change.made else "was not in"
    typer.echo(f"{name} {said} publication {settings.source.publication}")


def _names(given: list[str]) -> list[str]:
    """Columns as SQL reads them: lower case unless quoted, commas between."""
    from tailrace.errors import ConfigError

    found = []
    for text in given:
        rest = text.strip()
        while rest:
            match = _COLUMN.match(rest)
            if match is None:
                raise ConfigError(
                    f"--columns {text!r} is not a list of columns",
                    hint='Write id,status or "Odd Name",id, as in SQL.',
                )
            quoted, plain = match[1], match[2]
            found.append(quoted.replace('""', '"') if quoted else plain.lower())
            rest = rest[match.end() :]
    return found


def _takers(settings: Config, table: TableName) -> list[str]:
    from tailrace.tables import Tables

    return [
        name
        for name, pipeline in settings.pipelines.items()
        if Tables(pipeline.tables).match(table.namespace, table.name)
    ]


def _refuse_misfits(
    connection: Connection, *, settings: Config, table: TableName, pipelines: list[str]
) -> None:
    """Refuse a table that an expression of a pipeline does not fit: the pipeline would stop."""
    from tailrace.pipeline.expressions.compile import compile as compiled
    from tailrace.pipeline.expressions.expression import parse
    from tailrace.postgres.publication import read_publication
    from tailrace.postgres.relations import read_published

    state = read_publication(connection, settings.source.publication)
    relations = [each.relation for each in read_published(connection, state)] if state else []
    for relation in relations:
        if (relation.namespace, relation.name) == (table.namespace, table.name):
            for pipeline in pipelines:
                compiled(parse(settings.pipelines[pipeline], name=pipeline), relation, {})


def _backfill(
    connection: Connection, settings: Config, table: TableName, pipelines: list[str]
) -> None:
    """Order it once nobody is left who wrote before the table joined."""
    from tailrace.backfill.queue import submit
    from tailrace.postgres.joining import wait_for_writers

    def say(left: list[Writer]) -> None:
        typer.echo(f"waiting for {', '.join(map(str, left))}", err=True)

    wait_for_writers(connection, table, threading.Event(), say)
    for pipeline in pipelines:
        order = submit(settings, pipeline, table.quoted)
        typer.echo(f"backfill {order.id}: ordered, through pipeline {pipeline}")
