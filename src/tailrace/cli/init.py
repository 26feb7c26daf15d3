"""`tailrace init`: make publication and slot, and what Creek needs, or print the SQL that does."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.config import Config
    from tailrace.postgres.publication import TableName


def init(
    *,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            "-t",
            help='Table to capture, as in SQL: orders, sales.orders, "Sales"."Orders". Repeatable.',
        ),
    ] = None,
    all_tables: Annotated[
        bool,
        typer.Option(
            "--all-tables",
            help="Capture every table, those of the future too. A table without a primary key "
            "then refuses UPDATE and DELETE.",
        ),
    ] = False,
    print_sql: Annotated[
        bool,
        typer.Option("--print-sql", help="Print the script for a DBA and change nothing."),
    ] = False,
    creek: Annotated[
        bool,
        typer.Option(
            "--creek",
            help="Make the schema `_creek` too: stored Avro schemas and the functions "
            "add_table and remove_table, for `tailrace creek`.",
        ),
    ] = False,
    role: Annotated[
        str | None,
        typer.Option(
            help="Role the printed script makes. Without it: the user of the DSN, or tailrace. "
            "With --creek also the role that may use what is made."
        ),
    ] = None,
    slot_timeout_s: Annotated[
        float,
        typer.Option(
            "--slot-timeout",
            min=0.1,
            help="Seconds to wait for open transactions when the slot is made.",
        ),
    ] = 30,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
    slot: options.Slot = None,
    publication: options.Publication = None,
    log: options.LogPath = None,
) -> None:
    """Make the publication and the replication slot.

    Publication first, then slot. What is already there is left as it is, so this can be run
    again. Where a log exists and its slot is gone, nothing is made: a new slot would begin after
    the log's end, and the changes between would be missing.

    \b
    Examples:
      tailrace init --dsn "host=db dbname=shop user=tailrace" --table orders --table customers
      tailrace init --table orders --print-sql > setup.sql
      psql -v ON_ERROR_STOP=1 -d shop -f setup.sql
      tailrace init --creek --dsn "host=db dbname=shop user=owner" --role producer --table orders
    """
    from tailrace.postgres.publication import TableName

    settings = options.settings(config, dsn=dsn, slot=slot, publication=publication, log=log)
    names = [TableName.parse(table) for table in tables or []]
    if print_sql:
        _print_sql(settings, names, all_tables=all_tables, role=role, creek=creek)
        return
    if creek:
        _make_creek(settings, role or "")
    _make(settings, names, all_tables=all_tables, slot_timeout_s=slot_timeout_s)
    typer.echo(f"next: tailrace doctor, then tailrace {'creek' if creek else 'capture'}")


def _print_sql(
    settings: Config,
    tables: Sequence[TableName],
    *,
    all_tables: bool,
    role: str | None,
    creek: bool,
) -> None:
    from tailrace.creek import sql as schema
    from tailrace.postgres.bootstrap import setup_sql
    from tailrace.postgres.connection import user

    name = role or user(settings.source.dsn.get_secret_value()) or "tailrace"
    script = setup_sql(settings, tables=tables, all_tables=all_tables, role=name)
    typer.echo(script + (schema.setup_sql(name) if creek else ""), nl=False)


def _make_creek(settings: Config, role: str) -> None:
    from tailrace.creek.sql import install, installed
    from tailrace.postgres.connection import connect

    with connect(
        settings.source.dsn.get_secret_value(),
        connect_timeout_s=settings.capture.connect_timeout_s,
    ) as connection:
        there = installed(connection)
        install(connection, role=role)
    typer.echo(f"schema _creek: {'brought up to date' if there else 'created'}")


def _make(
    settings: Config, tables: Sequence[TableName], *, all_tables: bool, slot_timeout_s: float
) -> None:
    from tailrace.postgres.bootstrap import initialise
    from tailrace.postgres.connection import connect

    with connect(
        settings.source.dsn.get_secret_value(),
        connect_timeout_s=settings.capture.connect_timeout_s,
    ) as connection:
        made = initialise(
            connection,
            settings,
            tables=tables,
            all_tables=all_tables,
            slot_timeout_s=slot_timeout_s,
        )
    count = len(made.publication.tables)
    typer.echo(
        f"publication {made.publication.name}: {_state(made.publication_created)}, "
        f"{count} {'table' if count == 1 else 'tables'}"
    )
    typer.echo(
        f"slot {made.slot.name}: {_state(made.slot_created)}, at {made.slot.confirmed_flush_lsn}"
    )


def _state(created: bool) -> str:
    return "created" if created else "already there"
