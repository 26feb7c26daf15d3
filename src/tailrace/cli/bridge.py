"""`tailrace bridge`: PostgreSQL to NATS JetStream with two options and a few variables.

A preset of `tailrace run`; `tailrace.run.presets.bridge` says what it stands for.
"""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.preset import launch


def bridge(
    *,
    slot: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Replication slot: PostgreSQL keeps our place under it. Made at the first start.",
        ),
    ] = "cdc_slot",
    pub: Annotated[
        str,
        typer.Option(metavar="NAME", help="Publication that names the tables. It must exist."),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the HTTP endpoints. 0: none.")
    ] = 9090,
    as_json: Annotated[
        bool, typer.Option("--json", help="Messages in JSON. Without it: MessagePack.")
    ] = False,
    zstd: Annotated[
        bool,
        typer.Option(
            "--zstd",
            help="Compress snapshots (stream INIT). Changes (stream CDC) are never compressed.",
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of log, checkpoints and status. Without it: tailrace-data/SLOT. "
            "Keep it: it is what a restart goes on from.",
        ),
    ] = None,
) -> None:
    """Stream the tables of a publication to NATS JetStream, as a preset.

    Every INSERT, UPDATE and DELETE becomes a message on cdc.TABLE.OPERATION in the stream CDC,
    which is made when it is missing. What a table looks like is in the key-value bucket
    `schemas`. The slot is made at the first start; from then on nothing is lost, whatever dies.

    \b
    The database and NATS come from the environment:
      PG_HOST                   localhost
      PG_PORT                   5432
      PG_DB                     postgres
      POSTGRES_BRIDGE_USER      libpq's default
      POSTGRES_BRIDGE_PASSWORD  libpq's default (PGPASSWORD, the password file)
      NATS_HOST                 localhost
      NATS_PORT                 4222
      NATS_URL                  instead of host and port
      NATS_BRIDGE_USER, NATS_BRIDGE_PASSWORD

    \b
    Before the first start, a DBA runs:
      CREATE PUBLICATION my_pub FOR TABLE users, orders;
      CREATE USER bridge_reader WITH REPLICATION PASSWORD '...';

    \b
    Examples:
      tailrace bridge --slot my_slot --pub my_pub
      tailrace bridge --slot my_slot --pub my_pub --port 9091 --json
      curl localhost:9090/status
      curl -X POST localhost:9090/shutdown
    """
    from tailrace.observe import logs
    from tailrace.run.presets.bridge import prepare, secrets, settings, write

    logs.configure()
    folder = (data or Path("tailrace-data") / slot).absolute()
    given = settings(
        os.environ,
        slot=slot,
        publication=pub,
        port=port,
        as_json=as_json,
        zstd=zstd,
        data=folder,
    )
    file = write(given, folder)
    os.environ.update(secrets(os.environ))
    launch(file, prepare, metrics_lines=True)
