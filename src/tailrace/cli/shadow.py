"""`tailrace shadow`: the broker's topics in a real Kafka, until the move.

A preset of `tailrace run`; `tailrace.run.presets.shadow` says what it stands for.
"""

# ruff: noqa: PLC0415 - psycopg and Kafka's client are loaded when a command runs, not for --help

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli import options
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.shadow.settings import ShadowSink
    from tailrace.shadow.verify import Comparison

shadow_app = typer.Typer(
    name="shadow",
    invoke_without_command=True,
)
_FOLDER = Path("tailrace-data/shadow")

Data = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        envvar="TAILRACE_SHADOW_DATA",
        help="Folder of log, checkpoint and settings. Keep it: a restart goes on from there.",
    ),
]
Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="For scripts.")]


@shadow_app.callback()
def shadow(
    context: typer.Context,
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="BROKERS",
            help="The real Kafka: host:port, with commas between.",
            show_default=False,
        ),
    ] = "",
    dsn: options.Dsn = None,
    user: Annotated[
        str, typer.Option(metavar="NAME", help="User of Kafka. KAFKA_PASSWORD has the password.")
    ] = "",
    mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        typer.Option(help="How the user logs in."),
    ] = "SCRAM-SHA-512",
    tls: Annotated[bool, typer.Option("--tls", help="TLS to Kafka.")] = False,
    tls_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate authority to trust.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Client certificate.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Key of the client certificate.")
    ] = None,
    replicas: Annotated[
        int, typer.Option(min=-1, help="Copies of topics made there. -1: as Kafka has it.")
    ] = -1,
    slot: Annotated[
        str, typer.Option(metavar="NAME", help="Replication slot. Made at the first start.")
    ] = "tailrace_shadow",
    publication: Annotated[
        str, typer.Option(metavar="NAME", help="Publication. Made at the first start.")
    ] = "tailrace_shadow",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the HTTP endpoints. 0: none.")
    ] = 9090,
    data: Data = _FOLDER,
) -> None:
    """Copy the topics of `tailrace broker` to a real Kafka, each record once and in order.

    Topics, partitions, keys, values, headers and times are the same over there; topics are made
    where they are missing. Every topic is copied from its first record on, unless `off` or `on
    --from` says otherwise. Consumers over there need isolation.level=read_committed until the
    move.

    \b
    Examples:
      tailrace shadow --to kafka-1:9092,kafka-2:9092 --dsn "host=db dbname=shop"
      tailrace shadow off metrics
      tailrace shadow on orders --from latest
      tailrace shadow verify
      tailrace shadow cutover
    """
    if context.invoked_subcommand is not None:
        return
    if not to:
        raise ConfigError("where to?", hint="Name the real Kafka: --to kafka-1:9092")
    from tailrace.cli.preset import launch
    from tailrace.observe import logs
    from tailrace.run.presets.shadow import DSN, prepare, settings, write

    logs.configure()
    files = {"tls_ca": tls_ca, "tls_certificate": tls_certificate, "tls_key": tls_key}
    kafka: dict[str, object] = {
        "user": user,
        "mechanism": mechanism,
        "tls": tls,
        "replicas": replicas,
        **{key: str(path.absolute()) for key, path in files.items() if path is not None},
    }
    folder = data.absolute()
    given = settings(to, kafka=kafka, slot=slot, publication=publication, port=port, data=folder)
    # To the processes by environment: everybody may read a command line.
    os.environ[DSN] = dsn or ""
    launch(write(given, folder), prepare)


@shadow_app.command()
def on(
    topics: Topics,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest or an offset. Without it: the first record, or where it was.",
        ),
    ] = "",
    append: Annotated[
        bool,
        typer.Option(
            "--append", help="Also if the topic over there has records that are not of this copy."
        ),
    ] = False,
    dsn: options.Dsn = None,
) -> None:
    """Copy topics, also those that were off. Takes effect at once.

    \b
    Examples:
      tailrace shadow on orders payments
      tailrace shadow on orders --from latest
    """
    from tailrace.run.presets.shadow import turn_on

    turn_on(_dsn(dsn), topics, start=start, append=append)


@shadow_app.command()
def off(topics: Topics, *, dsn: options.Dsn = None) -> None:
    """Copy topics no more. What is over there stays; `on` goes on behind it.

    \b
    Example:
      tailrace shadow off metrics
    """
    from tailrace.run.presets.shadow import turn_off

    turn_off(_dsn(dsn), topics)


@shadow_app.command()
def verify(
    *,
    wait: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Wait so long for what is on its way."),
    ] = 30.0,
    as_json: Json = False,
    dsn: options.Dsn = None,
    data: Data = _FOLDER,
) -> None:
    """Compare both sides, record by record. Exit code 1 if a move would not be safe.

    Safe means: every record of every topic that is copied is over there, the same and in the same
    order, and nothing else is. It is true of the moment; stop the producers before you rely on it.

    \b
    Examples:
      tailrace shadow verify
      tailrace shadow verify --json
    """
    compared = _compare(_sink(data, dsn), wait, quiet=as_json)
    if as_json:
        typer.echo(json.dumps(_document(compared), indent=2))
    else:
        _show(compared)
    if not compared.safe:
        raise typer.Exit(1)


@shadow_app.command()
def cutover(
    *,
    wait: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Wait so long for what is on its way."),
    ] = 30.0,
    as_json: Json = False,
    dsn: options.Dsn = None,
    data: Data = _FOLDER,
) -> None:
    """Compare both sides, then let consumer groups go on over there where they are here.

    Stop producers and consumers first, and start them with the address of the real Kafka after.
    Offsets differ between the two: Kafka counts the ends of transactions as well. Nothing is
    written unless the copy is whole. Running it again does no harm before consumers have started.

    \b
    Example:
      tailrace shadow cutover
    """
    from tailrace.run.presets.shadow import NAME
    from tailrace.shadow.verify import commit

    sink = _sink(data, dsn)
    compared = _compare(sink, wait, quiet=as_json)
    if compared.safe:
        commit(sink, compared.groups, name=NAME)
    if as_json:
        typer.echo(json.dumps(_document(compared), indent=2))
    else:
        _show(compared)
        _show_groups(compared)
    if not compared.safe:
        raise typer.Exit(1)


def _dsn(dsn: str | None) -> str:
    return options.settings(None, dsn=dsn).source.dsn.get_secret_value()


def _sink(data: Path, dsn: str | None) -> ShadowSink:
    from tailrace import config
    from tailrace.run.presets.shadow import DSN, FILE, sink_of

    file = data / FILE
    if not file.exists():
        raise ConfigError(
            f"there is no {file}", hint="tailrace shadow --to writes it; name its folder: --data"
        )
    os.environ[DSN] = _dsn(dsn)
    return sink_of(config.load(file))


def _compare(sink: ShadowSink, wait_s: float, *, quiet: bool) -> Comparison:
    from tailrace.run.presets.shadow import NAME
    from tailrace.shadow.verify import verify as compare

    console = Console(stderr=True, quiet=quiet)
    with console.status("comparing") as status:
        return compare(
            sink, name=NAME, wait_s=wait_s, tell=lambda what: status.update(f"comparing {what}")
        )


def _document(compared: Comparison) -> dict[str, object]:
    return {
        "safe": compared.safe,
        "partitions": [asdict(each) | {"safe": each.safe} for each in compared.partitions],
        "groups": [asdict(each) for each in compared.groups],
        "left_out": compared.left_out,
    }


def _show(compared: Comparison) -> None:
    console = Console(highlight=False)
    table = Table(box=None)
    for name in ("topic", "partition", "offsets", "copied", "compared", "behind", "checksum", ""):
        table.add_column(name, justify="left" if name in ("topic", "checksum", "") else "right")
    for each in compared.partitions:
        same = each.checksum == each.checksum_there
        table.add_row(
            each.topic,
            str(each.partition),
            f"{each.first}..{each.next}",
            f"{each.copied:,}",
            f"{each.compared:,}",
            f"{each.behind:,}",
            f"{each.checksum:08x}" + ("" if same else f" ≠ {each.checksum_there:08x}"),
            "ok" if each.safe else each.difference or "behind",
        )
    console.print(table)
    if compared.left_out:
        console.print(f"not copied: {', '.join(compared.left_out)}")
    console.print("safe to move" if compared.safe else "not safe to move yet")


def _show_groups(compared: Comparison) -> None:
    table = Table(box=None)
    for name in ("group", "topic", "partition", "offset here", "offset there"):
        table.add_column(name, justify="left" if name in ("group", "topic") else "right")
    for each in compared.groups:
        table.add_row(
            each.group, each.topic, str(each.partition), str(each.offset), str(each.there)
        )
    console = Console(highlight=False)
    console.print(table)
    if compared.safe:
        console.print("groups go on over there")
