"""`tailrace creek`: PostgreSQL to NATS JetStream as Avro, for the clients of Creek.

A preset of `tailrace run`; `tailrace.run.presets.creek` says what it stands for.
"""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.preset import launch
from tailrace.errors import ConfigError

# Those of the Go library that Creek logs with.
_LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "fatal": "error",
    "panic": "error",
}


def creek(
    *,
    pg_uri: Annotated[
        str,
        typer.Option(
            "--pg-uri",
            envvar="PG_URI",
            metavar="URI",
            help="The database: postgres://user:password@host:5432/shop. Required.",
            show_default=False,
        ),
    ] = "",
    publication: Annotated[
        str,
        typer.Option(
            envvar="PG_PUBLICATION_NAME",
            metavar="NAME",
            help="Publication that names the tables. Made at the first start if it is missing.",
        ),
    ] = "creek",
    slot: Annotated[
        str,
        typer.Option(
            envvar="PG_PUBLICATION_SLOT",
            metavar="NAME",
            help="Replication slot: PostgreSQL keeps our place under it. Made at the first start.",
        ),
    ] = "creek",
    tables: Annotated[
        str,
        typer.Option(
            envvar="PG_TABLES",
            metavar="NAMES",
            help="Tables of the publication that is made, with blanks or commas between: "
            "public.orders, public.customers. Later on: SELECT _creek.add_table(...).",
            show_default=False,
        ),
    ] = "",
    message_timeout: Annotated[
        str,
        typer.Option(
            envvar="PG_MESSAGE_TIMEOUT",
            metavar="DURATION",
            help="Longest time before WAL without changes of ours is acknowledged.",
        ),
    ] = "10s",
    nats_uri: Annotated[
        str,
        typer.Option(
            "--nats-uri",
            envvar="NATS_URI",
            metavar="URI",
            help="NATS servers, with commas between. User and password may be in it.",
        ),
    ] = "nats://localhost:4222",
    namespace: Annotated[
        str,
        typer.Option(
            envvar="NATS_NAMESPACE",
            metavar="NAME",
            help="What all subjects and streams begin with. Producers of several databases may "
            "share one.",
        ),
    ] = "CREEK",
    nats_timeout: Annotated[
        str,
        typer.Option(
            envvar="NATS_TIMEOUT",
            metavar="DURATION",
            help="How long NATS may be silent before it counts as gone.",
        ),
    ] = "30s",
    max_pending: Annotated[
        int,
        typer.Option(
            envvar="NATS_MAX_PENDING",
            min=1,
            help="Messages on their way before acks are waited for.",
        ),
    ] = 4000,
    replicas: Annotated[
        int,
        typer.Option(
            envvar="NATS_REPLICAS", min=1, max=5, help="Copies of each stream in a NATS cluster."
        ),
    ] = 1,
    max_age: Annotated[
        str,
        typer.Option(
            envvar="NATS_RETENTION_MAX_AGE",
            metavar="DURATION",
            help="How long changes and snapshots are kept in NATS. 0: for ever.",
        ),
    ] = "168h",
    max_bytes: Annotated[
        int,
        typer.Option(
            envvar="NATS_RETENTION_MAX_BYTES",
            min=0,
            help="Bytes of changes kept in NATS; then new ones wait in the log. 0: no limit.",
        ),
    ] = 0,
    max_messages: Annotated[
        int,
        typer.Option(
            envvar="NATS_RETENTION_LIMIT_MAX_MSGS",
            min=0,
            help="Changes kept in NATS, likewise. 0: no limit.",
        ),
    ] = 0,
    log_level: Annotated[
        str,
        typer.Option(envvar="LOG_LEVEL", metavar="LEVEL", help="debug, info, warn or error."),
    ] = "info",
    port: Annotated[
        int,
        typer.Option(
            envvar="PROMETHEUS_PORT",
            min=0,
            max=65535,
            help="Port of /metrics and the other HTTP endpoints. 0: none.",
        ),
    ] = 7779,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address of the HTTP endpoints. They have no login, and one of them stops us.",
        ),
    ] = "127.0.0.1",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of log, checkpoints and status. Without it: tailrace-data/SLOT. "
            "Keep it: it is what a restart goes on from.",
        ),
    ] = None,
) -> None:
    """Stream the tables of a publication to NATS JetStream as Avro, for the clients of Creek.

    Every INSERT, UPDATE, DELETE and TRUNCATE becomes a message on NS.DATABASE.wal.SCHEMA.TABLE,
    where NS is the namespace. Its schema is answered to requests on NS._schema, a table's newest
    is on NS.DATABASE.schema.SCHEMA.TABLE, and a request on NS._snapshot has all rows of a table
    published. At the first start the publication, the schema `_creek` and the slot are made; from
    then on nothing is lost, whatever dies.

    Durations are as in Go: 500ms, 30s, 1h30m.

    \b
    Tables come and go without a restart, by SQL in the same database:
      SELECT _creek.add_table('creek', 'sales.orders');
      SELECT _creek.remove_table('creek', 'sales.orders');

    \b
    A role that may not make these things (the owner of the tables may) needs a DBA, once:
      tailrace init --creek --publication creek --slot creek --table sales.orders --print-sql

    \b
    Examples:
      PG_URI=postgres://creek:...@db/shop PG_TABLES="public.orders public.customers" tailrace creek
      tailrace creek --namespace EU --port 7780 --data /var/lib/tailrace/eu
      curl localhost:7779/metrics
    """
    from tailrace.observe import logs
    from tailrace.run.presets.creek import Options, duration_s, prepare, tables_of, write

    level = _LEVELS.get(log_level.lower())
    if level is None:
        raise ConfigError(f"LOG_LEVEL should be one of {', '.join(_LEVELS)}")
    os.environ["TAILRACE_LOG_LEVEL"] = level
    logs.configure()
    if not pg_uri:
        raise ConfigError(
            "PG_URI is not set",
            hint="Export it, or give --pg-uri: postgres://user:password@host:5432/database",
        )
    given = Options(
        publication=publication,
        slot=slot,
        namespace=namespace,
        message_timeout_s=duration_s(message_timeout, "PG_MESSAGE_TIMEOUT", least=0.001),
        nats_timeout_s=duration_s(nats_timeout, "NATS_TIMEOUT", least=0.001),
        max_pending=max_pending,
        replicas=replicas,
        max_age_s=duration_s(max_age, "NATS_RETENTION_MAX_AGE"),
        max_bytes=max_bytes,
        max_messages=max_messages,
        host=host,
        port=port,
    )
    wanted = tables_of(tables)
    file = write(given, (data or Path("tailrace-data") / slot).absolute())
    # For the settings file, which refers to them, here and in the processes.
    os.environ.update({"PG_URI": pg_uri, "NATS_URI": nats_uri})
    launch(file, partial(prepare, tables=wanted))
