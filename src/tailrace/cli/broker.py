"""`tailrace broker`: Kafka's clients on tables of PostgreSQL."""

# ruff: noqa: PLC0415 - psycopg and kio are loaded when the command runs, not for --help

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tailrace.cli import options


def broker(
    *,
    listen: Annotated[
        str,
        typer.Option(
            envvar="TAILRACE_BROKER_LISTEN",
            metavar="HOST:PORT",
            help="Where clients find it: their bootstrap.servers.",
        ),
    ] = "127.0.0.1:9092",
    init: Annotated[
        bool,
        typer.Option(
            "--init", help="Make the schema kafka with its tables and functions, and end."
        ),
    ] = False,
    auto_create: Annotated[
        bool, typer.Option(help="Make topics that clients ask for, as Kafka does by default.")
    ] = True,
    partitions: Annotated[
        int, typer.Option(min=1, max=10_000, help="Partitions of topics made without a number.")
    ] = 1,
    max_message_bytes: Annotated[
        int, typer.Option(min=1024, help="Largest record batch, packed and unpacked.")
    ] = 8 << 20,
    tail_bytes: Annotated[
        int, typer.Option(min=0, help="Memory for the last batches, which consumers read first.")
    ] = 64 << 20,
    connections: Annotated[
        int, typer.Option(min=1, help="Connections to PostgreSQL for reading.")
    ] = 4,
    retention_check: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="How often old records are looked for."),
    ] = 60.0,
    log_format: Annotated[
        Literal["auto", "console", "json"],
        typer.Option(help="auto is console on a terminal and json elsewhere."),
    ] = "auto",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """Let Kafka's clients produce to and consume from tables of PostgreSQL.

    Topics are rows of kafka.topics, records are rows of kafka.messages. Stock clients connect as to
    any broker; SQL reads the same records and writes them too, in the application's own
    transactions. An acknowledged record is committed. One broker serves a database.

    \b
    Examples:
      tailrace broker --init --dsn "host=db dbname=shop"
      tailrace broker --dsn "host=db dbname=shop" --listen 127.0.0.1:9092
      kcat -b 127.0.0.1:9092 -t orders -P
      psql -c "SELECT kafka.produce('orders', 'key', 'value')"
    """
    import asyncio

    from tailrace.observe import logs

    try:
        from tailrace.broker.broker import Settings, install
        from tailrace.broker.serving import serve
    except ModuleNotFoundError as error:
        from tailrace.errors import ConfigError

        raise ConfigError(
            f"{error.name} is not installed", hint="pip install 'tailrace[broker]'"
        ) from error

    logs.configure(log_format, verbose=verbose)
    found = options.settings(config, dsn=dsn).source.dsn.get_secret_value()
    if init:
        asyncio.run(install(found))
        typer.echo("The schema kafka is there. Start the broker: tailrace broker")
        return
    settings = Settings(
        dsn=found,
        auto_create=auto_create,
        partitions=partitions,
        most_message_bytes=max_message_bytes,
        tail_bytes=tail_bytes,
        connections=connections,
        retention_s=retention_check,
    )
    asyncio.run(serve(settings, listen))
