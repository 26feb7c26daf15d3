"""`tailrace init`: create publication and slot (and Creek's schema), or print the SQL that does."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.config import Config
    from tailrace.postgres.names import TableName


TableNames = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        "-t",
        help="Table to capture, written as in SQL: orders, sales.orders, "
        '"Sales"."Orders". May be repeated.',
    ),
]
AllTables = Annotated[
    bool,
    typer.Option(
        "--all-tables",
        help="Capture all tables, also those created later. UPDATE and DELETE then fail on tables "
        "without a primary key.",
    ),
]
WithCreek = Annotated[
    bool,
    typer.Option(
        "--creek",
        help="Also create the schema `_creek` for `tailrace creek`: stored Avro schemas and the "
        "functions add_table and remove_table.",
    ),
]
Role = Annotated[
    str | None,
    typer.Option(
        help="Role that the printed script creates. Default: the user of the DSN, or tailrace. "
        "With --creek, also the role that is granted the schema `_creek`."
    ),
]


def init(
    *,
    tables: TableNames = None,
    all_tables: AllTables = False,
    print_sql: Annotated[
        bool, typer.Option("--print-sql", help="Print the SQL script for a DBA; change nothing.")
    ] = False,
    creek: WithCreek = False,
    role: Role = None,
    slot_timeout_s: Annotated[
        float,
        typer.Option(
            "--slot-timeout",
            min=0.1,
            help="Max seconds to wait for open transactions when the slot is created.",
        ),
    ] = 30,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
    slot: options.Slot = None,
    publication: options.Publication = None,
    log: options.LogPath = None,
) -> None:
    """Create the publication and the replication slot in the source database.

    Run this once per source, before `tailrace capture`. It creates the publication first, then the
    slot, and leaves existing ones unchanged, so it is safe to run again. If a log exists but its
    slot is missing, it creates nothing: a new slot would start after the end of the log, and the
    changes between them would be missing.

    Creating a publication needs a role that owns the tables. If you do not have one, print the SQL
    with --print-sql and give it to a DBA.

    \b
    Examples:
      Capture two tables:
        tailrace init --dsn "host=db dbname=shop user=tailrace" --table orders --table customers
      Print a script for a DBA, who runs it with psql:
        tailrace init --table orders --print-sql > setup.sql
        psql -v ON_ERROR_STOP=1 -d shop -f setup.sql
      Prepare a database for `tailrace creek`:
        tailrace init --creek --dsn "host=db dbname=shop user=owner" --role producer --table orders
    """
    from tailrace.postgres.names import TableName

    settings = options.settings(config, dsn=dsn, slot=slot, publication=publication, log=log)
    names = [TableName.parse(table) for table in tables or []]
    if print_sql:
        _print_sql(settings, names, all_tables=all_tables, role=role, creek=creek)
        return
    if creek:
        _create_creek_schema(settings, role or "")
    _create(settings, names, all_tables=all_tables, slot_timeout_s=slot_timeout_s)
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


def _create_creek_schema(settings: Config, role: str) -> None:
    from tailrace.creek.sql import install, installed
    from tailrace.postgres.connection import connect

    with connect(
        settings.source.dsn.get_secret_value(),
        connect_timeout_s=settings.capture.connect_timeout_s,
    ) as connection:
        existed = installed(connection)
        install(connection, role=role)
    typer.echo(f"schema _creek: {'updated' if existed else 'created'}")


def _create(
    settings: Config, tables: Sequence[TableName], *, all_tables: bool, slot_timeout_s: float
) -> None:
    from tailrace.postgres.bootstrap import initialise
    from tailrace.postgres.connection import connect

    with connect(
        settings.source.dsn.get_secret_value(),
        connect_timeout_s=settings.capture.connect_timeout_s,
    ) as connection:
        result = initialise(
            connection,
            settings,
            tables=tables,
            all_tables=all_tables,
            slot_timeout_s=slot_timeout_s,
        )
    count = len(result.publication.tables)
    typer.echo(
        f"publication {result.publication.name}: {_state(result.publication_created)}, "
        f"{count} {'table' if count == 1 else 'tables'}"
    )
    typer.echo(
        f"slot {result.slot.name}: {_state(result.slot_created)}, "
        f"at {result.slot.confirmed_flush_lsn}"
    )


def _state(created: bool) -> str:
    return "created" if created else "already exists"
