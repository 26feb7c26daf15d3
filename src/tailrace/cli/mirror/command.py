"""`tailrace mirror`: a local copy of a table that follows its source."""

# ruff: noqa: PLC0415 - NATS and Arrow are loaded when the command runs, not for --help

from __future__ import annotations

import asyncio
import signal
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field, model_validator

from tailrace.cli.mirror.progress import open_display
from tailrace.cli.model_options import with_options
from tailrace.errors import ConfigError, TailraceError
from tailrace.settings import Flag, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cli.mirror.progress import Display
    from tailrace.mirror import Mirror, MirrorSource, Target
    from tailrace.mirror.sources.registry import SelectedSource


class MirrorOptions(Section):
    """The options of the command, except for the tables."""

    source: Annotated[str, Flag(name="--from", env="TAILRACE_NATS", metavar="URL")] = Field(
        default="nats://127.0.0.1:4222",
        repr=False,
        description="NATS server that a pipeline of shape `bridge` writes to. Separate several "
        "servers with commas. For Creek's producers: nats://host:4222?creek=CREEK&database=shop.",
    )
    to: Annotated[str, Flag(env="TAILRACE_MIRROR", metavar="URL")] = Field(
        repr=False,
        description="Target: sqlite:///local.db, duckdb:///local.db or "
        "postgresql://user@host/database.",
    )
    name: Annotated[str | None, Flag(name="--as", metavar="TABLE")] = Field(
        default=None, description="Name of the copy. Only for a single table."
    )
    key: Annotated[list[str] | None, Flag(metavar="COLUMN")] = Field(
        default=None,
        description="Column of the key, if the schema document does not name it. Repeatable.",
    )
    no_key: Annotated[bool, Flag(switch=True)] = Field(
        default=False,
        description="The table has no key. Updates and deletes then need REPLICA IDENTITY FULL.",
    )
    fresh: Annotated[bool, Flag(switch=True)] = Field(
        default=False, description="Start with a new snapshot, whatever the target has."
    )
    credentials: Annotated[Path | None, Flag(name="--creds", metavar="FILE")] = Field(
        default=None, description="A .creds file for NATS."
    )
    stream: str = Field(default="CDC", description="Stream of changes.")
    snapshots: str = Field(default="INIT", description="Stream of snapshots.")
    subjects: str = Field(
        default="cdc.{table}.*", description="Subjects of a table's changes in the stream."
    )

    @model_validator(mode="after")
    def _check_key(self) -> MirrorOptions:
        if self.no_key and self.key:
            raise ValueError("--key and --no-key contradict each other")
        return self

    @property
    def key_columns(self) -> Sequence[str] | None:
        """The key that the user names; `()` for none, None to use the schema document's."""
        return () if self.no_key else (self.key or None)


@with_options(MirrorOptions)
def mirror(
    options: MirrorOptions,
    *,
    tables: Annotated[
        list[str],
        typer.Option(
            "--table",
            "-t",
            metavar="TABLE",
            help='users, sales.users or sales."odd.name". Repeatable.',
        ),
    ],
) -> None:
    """Keep a copy of a table in SQLite, DuckDB or PostgreSQL.

    Creates the table, loads it from a snapshot and then applies every change. Rows and the position
    in the stream are committed in one transaction: after a crash nothing is lost or applied twice,
    and a restart resumes. Connects to NATS only, not to the source database.

    The pipeline must serve snapshots: `tailrace bridge` does, and `tailrace run` with
    `snapshots: {}` in the pipeline's settings. With `atomic: transaction` in its sink, readers of
    the copy see whole transactions only.

    For Creek's producers append `?creek=NAMESPACE` to the address, and `&database=NAME` if the
    namespace has several databases. This needs the extra `creek`.

    Each of several tables is mirrored independently. Ctrl-C or SIGTERM stops the command.

    \b
    Examples:
      tailrace mirror --table users --to sqlite:///local.db
      tailrace mirror --from nats://nats:4222 -t users -t sales.orders --to duckdb:///shop.db
      tailrace mirror -t users --to postgresql://me@localhost/reports --as copies.users
      tailrace mirror --from 'nats://nats:4222?creek=CREEK' -t users --to sqlite:///local.db
      TAILRACE_MIRROR=postgresql://me:secret@db/reports tailrace mirror -t users
    """
    from tailrace.mirror import target_of
    from tailrace.mirror.sources.registry import SelectedSource

    if len(tables) > 1 and (options.name is not None or options.key or options.no_key):
        raise ConfigError(
            "--as, --key and --no-key are for one table", hint="Start one mirror per table."
        )
    targets = {table: target_of(options.to, options.name or table) for table in tables}
    source = SelectedSource.parse(options.source)
    asyncio.run(_mirror(options, source, targets))


async def _mirror(
    options: MirrorOptions, source: SelectedSource, targets: dict[str, Target]
) -> None:
    from tailrace.mirror.sources.source import SourceOptions, StreamNames

    streams = StreamNames(
        stream=options.stream, snapshots=options.snapshots, subjects=options.subjects
    )
    source_options = SourceOptions(credentials=options.credentials, streams=streams)
    async with source.open(source_options) as opened:
        display = open_display()
        await _run(_mirrors(options, opened, targets, display), display)


def _mirrors(
    options: MirrorOptions, source: MirrorSource, targets: dict[str, Target], display: Display
) -> list[Mirror]:
    from tailrace.mirror import Mirror, Status

    return [
        Mirror(
            source, table, target, key=options.key_columns, fresh=options.fresh,
            status=Status(table=table, on_event=display.event),
        )
        for table, target in targets.items()
    ]  # fmt: skip


async def _run(mirrors: Sequence[Mirror], display: Display) -> None:
    """Run mirrors until a signal, or until all have failed. Raises the first error."""
    from tailrace.mirror import cancel_all

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    statuses = [mirror.status for mirror in mirrors]
    running = {asyncio.create_task(mirror.run()): mirror.status for mirror in mirrors}
    errors: list[TailraceError] = []
    try:
        while running and not stop.is_set():
            display.show(statuses)
            done, _ = await asyncio.wait(
                {stopping, *running}, timeout=display.pause_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in running.keys() & done:
                errors.append(_error(task))
                display.event(running.pop(task), f"stopped: {errors[-1].code}: {errors[-1]}")
    finally:
        await cancel_all([stopping, *running])
        display.show(statuses)
        display.close()
    if errors:
        raise errors[0]


def _error(task: asyncio.Task[None]) -> TailraceError:
    error = task.exception()
    if isinstance(error, TailraceError):
        return error
    assert error is not None
    raise error
