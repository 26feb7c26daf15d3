"""`tailrace bridge`: PostgreSQL to NATS JetStream with two options and a few variables.

A preset of `tailrace run`: it writes the settings it stands for to `DATA/bridge.yml`, where they
can be read, changed and given to the other commands, and runs them. No secret is in that file:
passwords stay in the environment.
"""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from tailrace.cli.run import VARIABLES
from tailrace.errors import ConfigError, RefusedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.config import Config

FILE = "bridge.yml"
NAME = "bridge"
_STREAM = "CDC"
_SUBJECTS = "cdc.>"
_SUBJECT = "cdc.{table}.{operation}"
_HEADER = """\
# Written by `tailrace bridge` at every start. To change more than its options can, copy this file
# and run the copy: tailrace run copy.yml
"""


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
    from tailrace import config
    from tailrace.engine.supervisor import processes, supervise
    from tailrace.observe import logs

    logs.configure()
    folder = (data or Path("tailrace-data") / slot).absolute()
    given = settings(
        os.environ, slot=slot, publication=pub, port=port, as_json=as_json, data=folder
    )
    file = write(given, folder)
    os.environ.update(secrets(os.environ))
    for name in VARIABLES:
        # The file says it all: a variable meant for other commands must not reach into it.
        os.environ.pop(name, None)
    loaded = config.load(file)
    if zstd:
        typer.echo("--zstd is for snapshots; changes are sent as they are", err=True)
    prepare(loaded)
    raise typer.Exit(supervise(processes(loaded, file, metrics_lines=True), loaded.data))


def settings(
    environment: Mapping[str, str],
    *,
    slot: str,
    publication: str,
    port: int,
    as_json: bool,
    data: Path,
) -> dict[str, Any]:
    """The content of the settings file. Literal text is escaped where a reference could begin."""
    literal = _literal
    return {
        "source": {
            "dsn": literal(_dsn(environment)),
            "slot": literal(slot),
            "publication": literal(publication),
        },
        "log": {"path": literal(str(data / "log"))},
        "data": literal(str(data)),
        "http": {"port": port},
        "pipelines": {
            NAME: {
                "shape": "bridge",
                "encoding": "json" if as_json else "msgpack",
                "sink": {
                    "type": "nats",
                    "url": _nats_url(environment),
                    "user": literal(environment.get("NATS_BRIDGE_USER", "")),
                    "password": "${NATS_BRIDGE_PASSWORD:-}",
                    "stream": {"name": _STREAM, "subjects": [_SUBJECTS]},
                    "subject": _SUBJECT,
                },
            }
        },
    }


def secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """What is set for this process and its children: libpq takes the password from there.

    A reference inside the connection string would need quoting that depends on the password.
    """
    password = environment.get("POSTGRES_BRIDGE_PASSWORD", "")
    return {"PGPASSWORD": password} if password else {}


def _literal(text: str) -> str:
    return text.replace("${", "$${")


def _dsn(environment: Mapping[str, str]) -> str:
    from psycopg.conninfo import make_conninfo

    parts = {
        "host": environment.get("PG_HOST") or "localhost",
        "port": str(_port(environment, "PG_PORT", 5432)),
        "dbname": environment.get("PG_DB") or "postgres",
        "user": environment.get("POSTGRES_BRIDGE_USER", ""),
    }
    return make_conninfo("", **{key: value for key, value in parts.items() if value})


def _nats_url(environment: Mapping[str, str]) -> str:
    if environment.get("NATS_URL"):
        # It may hold a password.
        return "${NATS_URL}"
    host = environment.get("NATS_HOST") or "localhost"
    bracketed = f"[{host}]" if ":" in host else host
    return _literal(f"nats://{bracketed}:{_port(environment, 'NATS_PORT', 4222)}")


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ConfigError(f"{name} should be a port, a number from 1 to 65535")
    return int(text)


def write(content: Mapping[str, Any], folder: Path) -> Path:
    """Write the settings file into the data folder, whole or not at all."""
    file = folder / FILE
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
        temporary.write_text(_HEADER + text, encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror}") from error
    return file


def prepare(config: Config) -> None:
    """At the first start, make the slot. Where a log is, capture itself checks that slot fits."""
    from tailrace.capture.bootstrap import initialise, log_exists
    from tailrace.capture.connection import connect, quote_ident
    from tailrace.capture.publication import read_publication

    if log_exists(config.log.path):
        return
    source = config.source
    with connect(
        source.dsn.get_secret_value(), connect_timeout_s=config.capture.connect_timeout_s
    ) as connection:
        if read_publication(connection, source.publication) is None:
            name = quote_ident(source.publication)
            raise RefusedError(
                f"there is no publication {source.publication!r} in this database",
                hint="The owner of the tables makes it, before the bridge makes its slot: "
                f"CREATE PUBLICATION {name} FOR TABLE users, orders;",
            )
        made = initialise(connection, config)
    if made.slot_created:
        typer.echo(f"slot {made.slot.name}: created, at {made.slot.confirmed_flush_lsn}", err=True)
