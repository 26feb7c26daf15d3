"""`tailrace broker`: serves Kafka's clients from tables of PostgreSQL. `accounts` has its users."""

# ruff: noqa: PLC0415 - psycopg and kio are loaded when the command runs, not for --help

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.broker.settings import BrokerSettings
from tailrace.cli import options
from tailrace.cli.broker.accounts import acl_app, user_app
from tailrace.cli.broker.groups import groups_app
from tailrace.cli.model_options import with_options

broker_app = typer.Typer(name="broker", invoke_without_command=True)
broker_app.add_typer(user_app)
broker_app.add_typer(acl_app)
broker_app.add_typer(groups_app)

Init = Annotated[
    bool,
    typer.Option("--init", help="Create the schema kafka with its tables and functions, and exit."),
]


@broker_app.callback()
@with_options(BrokerSettings)
def broker(
    context: typer.Context,
    settings: BrokerSettings,
    *,
    init: Init = False,
    log_format: options.LogFormat = "auto",
    verbose: options.Verbose = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """Serve Kafka's clients from tables of PostgreSQL.

    Topics are rows of kafka.topics, records are rows of kafka.messages. Clients connect as to any
    Kafka broker. SQL reads the same records, and writes records in the application's own
    transactions. An acknowledged record is committed. A database has one broker.

    \b
    Examples:
      tailrace broker --init --dsn "host=db dbname=shop"
      tailrace broker --dsn "host=db dbname=shop" --listen 127.0.0.1:9092
      kcat -b 127.0.0.1:9092 -t orders -P
      psql -c "SELECT kafka.produce('orders', 'key', 'value')"

    Without users every client on this machine may do everything. From the first user on a login is
    required, and an operation that no rule allows is denied.

    \b
      tailrace broker user add shop
      tailrace broker acl add --user shop --topic 'orders*' --group shop --allow read,write
      tailrace broker --listen 0.0.0.0:9092 --tls-cert cert.pem --tls-key key.pem
    """
    if context.invoked_subcommand is not None:
        context.obj = options.Chosen(config, dsn)
        return
    import asyncio

    from tailrace.observe import logs

    try:
        from tailrace.broker.broker import install
        from tailrace.broker.serving import serve
    except ModuleNotFoundError as error:
        from tailrace.errors import ConfigError

        raise ConfigError(
            f"{error.name} is not installed", hint="pip install 'tailrace[broker]'"
        ) from error

    logs.configure(log_format, verbose=verbose)
    file = options.settings(config, dsn=dsn)
    source = file.source.dsn.get_secret_value()
    if init:
        asyncio.run(install(source))
        typer.echo("The schema kafka is ready. Start the broker: tailrace broker")
        return
    asyncio.run(serve(source, settings, file.http))
