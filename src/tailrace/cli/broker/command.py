"""`tailrace broker`: Kafka's clients on tables of PostgreSQL. Its users are in `accounts`."""

# ruff: noqa: PLC0415 - psycopg and kio are loaded when the command runs, not for --help

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import options
from tailrace.cli.broker.accounts import acl_app, user_app

if TYPE_CHECKING:
    from tailrace.broker.auth.tls import Certificate

broker_app = typer.Typer(name="broker", invoke_without_command=True)
broker_app.add_typer(user_app)
broker_app.add_typer(acl_app)


@broker_app.callback()
def broker(
    context: typer.Context,
    *,
    listen: Annotated[
        str,
        typer.Option(
            envvar="TAILRACE_BROKER_LISTEN",
            metavar="HOST:PORT",
            help="Where clients find it: their bootstrap.servers. Beyond loopback there have to be "
            "users and TLS.",
        ),
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None,
        typer.Option(
            envvar="TAILRACE_BROKER_ADVERTISE",
            metavar="HOST:PORT",
            help="What clients are told instead: a proxy's address, the name in the certificate.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Certificate and its chain (PEM). SIGHUP: read again."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Clients need a certificate of this authority, beside the login."
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Beyond loopback without TLS, on a network you trust. Users log in."
        ),
    ] = False,
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
    max_connections: Annotated[
        int, typer.Option(min=1, help="Clients at a time; more are closed at once.")
    ] = 4000,
    request_memory: Annotated[
        int,
        typer.Option(
            min=1 << 20,
            metavar="BYTES",
            help="For requests under way; more wait until there is room.",
        ),
    ] = 256 << 20,
    idle_timeout: Annotated[
        float,
        typer.Option(min=1, metavar="SECONDS", help="Clients that ask nothing for so long go."),
    ] = 600.0,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the HTTP endpoints: /health, /ready, /status, /metrics. 0: none.",
        ),
    ] = 0,
    log_format: options.LogFormat = "auto",
    verbose: options.Verbose = False,
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

    Without users everybody on this machine may do everything. With the first user login is
    required, and what no rule allows is forbidden.

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
        from tailrace.broker.broker import Settings, install
        from tailrace.broker.limits import Limits
        from tailrace.broker.serving import Listening, address, serve
    except ModuleNotFoundError as error:
        from tailrace.errors import ConfigError

        raise ConfigError(
            f"{error.name} is not installed", hint="pip install 'tailrace[broker]'"
        ) from error

    logs.configure(log_format, verbose=verbose)
    given = options.settings(config, dsn=dsn)
    found = given.source.dsn.get_secret_value()
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
        limits=Limits(
            connections=max_connections, memory_bytes=request_memory, idle_s=idle_timeout
        ),
    )
    listening = Listening(
        address=address(listen),
        advertised=address(advertise) if advertise is not None else None,
        certificate=_certificate(tls_cert, tls_key, tls_client_ca),
        insecure=insecure,
        http=(given.http.host, port),
    )
    asyncio.run(serve(settings, listening))


def _certificate(
    chain: Path | None, key: Path | None, client_authority: Path | None
) -> Certificate | None:
    from tailrace.broker.auth.tls import Certificate
    from tailrace.errors import ConfigError

    if chain is None and key is None and client_authority is None:
        return None
    if chain is None or key is None:
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    return Certificate(chain=chain, key=key, client_authority=client_authority)
