"""`tailrace shadow`: copies the broker's topics to a Kafka cluster, until clients move there.

A preset of `tailrace run`: `tailrace.run.presets.shadow` writes its settings file.
"""

# ruff: noqa: PLC0415 - psycopg and Kafka's client are loaded when a command runs, not for --help

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tailrace import private
from tailrace.cli import options
from tailrace.cli.model_options import with_options
from tailrace.errors import ConfigError
from tailrace.shadow.settings import DATA, DATA_ENV, ShadowSettings

if TYPE_CHECKING:
    from tailrace.shadow.comparison import Comparison
    from tailrace.shadow.settings import ShadowSink

shadow_app = typer.Typer(
    name="shadow",
    invoke_without_command=True,
)

Data = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        envvar=DATA_ENV,
        help=ShadowSettings.model_fields["data"].description,
    ),
]
Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Wait = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="Wait at most this long for records in flight."),
]
_WAIT_S = 30.0


@shadow_app.callback()
@with_options(ShadowSettings)
def shadow(context: typer.Context, settings: ShadowSettings, *, dsn: options.Dsn = None) -> None:
    """Copy the topics of `tailrace broker` to a Kafka cluster, each record once and in order.

    Partitions, keys, values, headers and timestamps are the same in Kafka; missing topics are
    created. Every topic is copied from its first record on, unless `off` or `on --from` says
    otherwise. Until the move, consumers of the copy need isolation.level=read_committed.

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
    if not settings.to:
        raise ConfigError(
            "--to is missing: the Kafka cluster to copy to",
            hint="tailrace shadow --to kafka-1:9092",
        )
    from tailrace.cli.preset import launch
    from tailrace.observe import logs
    from tailrace.run.presets.shadow import DSN, config_file, prepare, write

    private.restrict_new_files()
    logs.configure()
    folder = settings.data.absolute()
    # In the environment of the processes: every user of the machine can read a command line.
    os.environ[DSN] = dsn or ""
    launch(write(config_file(settings, folder), folder), prepare)


@shadow_app.command()
def on(
    topics: Topics,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest or an offset. Default: resume, or the first record.",
        ),
    ] = "",
    append: Annotated[
        bool,
        typer.Option("--append", help="Append to a Kafka topic that already has other records."),
    ] = False,
    dsn: options.Dsn = None,
) -> None:
    """Copy topics, also those that were switched off. Takes effect at once.

    \b
    Examples:
      tailrace shadow on orders payments
      tailrace shadow on orders --from latest
    """
    from tailrace.run.presets.shadow import turn_on

    turn_on(_dsn(dsn), topics, start=start, append=append)


@shadow_app.command()
def off(topics: Topics, *, dsn: options.Dsn = None) -> None:
    """Stop to copy topics. Their records stay in Kafka; `on` resumes after them.

    \b
    Example:
      tailrace shadow off metrics
    """
    from tailrace.run.presets.shadow import turn_off

    turn_off(_dsn(dsn), topics)


@shadow_app.command()
def verify(
    *,
    wait: Wait = _WAIT_S,
    as_json: Json = False,
    dsn: options.Dsn = None,
    data: Data = DATA,
) -> None:
    """Compare both sides, record by record. The exit code is 1 if a move is not safe.

    Safe means: Kafka has every record of every copied topic, unchanged and in the same order, and
    no others. The result is true for the moment; stop the producers before you rely on it.

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
    wait: Wait = _WAIT_S,
    as_json: Json = False,
    dsn: options.Dsn = None,
    data: Data = DATA,
) -> None:
    """Compare both sides, then commit the offsets of consumer groups in Kafka.

    Stop producers and consumers first. Afterwards start them with the address of the Kafka cluster:
    each group resumes where it stopped. Offsets differ between the two sides, because Kafka also
    counts the markers of transactions. Nothing is committed unless the copy is complete. The
    command may be repeated until the consumers have started.

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
            f"{file} does not exist",
            hint="Start the shadow first: tailrace shadow --to ...; or set its folder: --data",
        )
    os.environ[DSN] = _dsn(dsn)
    return sink_of(config.load(file))


def _compare(sink: ShadowSink, wait_s: float, *, quiet: bool) -> Comparison:
    from tailrace.run.presets.shadow import NAME
    from tailrace.shadow.verify import verify as compare

    console = Console(stderr=True, quiet=quiet)
    with console.status("comparing") as status:
        return compare(
            sink,
            name=NAME,
            wait_s=wait_s,
            on_progress=lambda what: status.update(f"comparing {what}"),
        )


def _document(compared: Comparison) -> dict[str, object]:
    return {
        "safe": compared.safe,
        "partitions": [asdict(one) | {"safe": one.safe} for one in compared.partitions],
        "groups": [asdict(one) for one in compared.groups],
        "not_copied": compared.not_copied,
    }


def _show(compared: Comparison) -> None:
    console = Console(highlight=False)
    table = Table(box=None)
    for name in ("topic", "partition", "offsets", "copied", "compared", "lag", "checksum", ""):
        table.add_column(name, justify="left" if name in ("topic", "checksum", "") else "right")
    for one in compared.partitions:
        same = one.checksum == one.kafka_checksum
        table.add_row(
            one.topic,
            str(one.partition),
            f"{one.first}..{one.next}",
            f"{one.copied:,}",
            f"{one.compared:,}",
            f"{one.lag:,}",
            f"{one.checksum:08x}" + ("" if same else f" ≠ {one.kafka_checksum:08x}"),
            "ok" if one.safe else one.difference or "incomplete",
        )
    console.print(table)
    if compared.not_copied:
        console.print(f"not copied: {', '.join(compared.not_copied)}")
    console.print("safe to move" if compared.safe else "not safe to move yet")


def _show_groups(compared: Comparison) -> None:
    table = Table(box=None)
    for name in ("group", "topic", "partition", "offset", "offset in Kafka"):
        table.add_column(name, justify="left" if name in ("group", "topic") else "right")
    for one in compared.groups:
        table.add_row(
            one.group, one.topic, str(one.partition), str(one.offset), str(one.kafka_offset)
        )
    console = Console(highlight=False)
    console.print(table)
    if compared.safe:
        console.print("groups resume in Kafka")
