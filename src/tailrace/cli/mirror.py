"""`tailrace mirror`: a local copy of a table that keeps current."""

# ruff: noqa: PLC0415 - NATS and Arrow are loaded when the command runs, not for --help

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Protocol

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tailrace.cli.log.render import escape
from tailrace.errors import ConfigError, TailraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.mirror import Mirror, MirrorSource, Status

_REFRESHES_PER_S = 4
_LINE_S = 5.0
_BRIDGE = "CDC", "INIT", "cdc.{table}.*"


def mirror(
    *,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="URL",
            envvar="TAILRACE_NATS",
            help="NATS server that a pipeline of shape `bridge` writes to. Several with commas. "
            "Creek's producers: nats://host:4222?creek=CREEK&database=shop.",
        ),
    ] = "nats://127.0.0.1:4222",
    tables: Annotated[
        list[str],
        typer.Option(
            "--table",
            "-t",
            metavar="TABLE",
            help='users, sales.users or sales."odd.name". Repeatable.',
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="TAILRACE_MIRROR",
            help="sqlite:///local.db, duckdb:///local.db or postgresql://user@host/database.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="TABLE", help="The copy's own name, of one table."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of the key, if the schema document does not say it. Repeatable.",
        ),
    ] = None,
    no_key: Annotated[
        bool,
        typer.Option(
            "--no-key", help="The table has no key. Updates need REPLICA IDENTITY FULL then."
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin with a new snapshot, whatever is there.")
    ] = False,
    credentials: Annotated[
        Path | None, typer.Option("--creds", metavar="FILE", help="A .creds file for NATS.")
    ] = None,
    stream: Annotated[str, typer.Option(help="The stream of changes.")] = _BRIDGE[0],
    snapshots: Annotated[str, typer.Option(help="The stream of snapshots.")] = _BRIDGE[1],
    subjects: Annotated[
        str, typer.Option(help="Where a table's changes are in the stream.")
    ] = _BRIDGE[2],
) -> None:
    """Keep a copy of a table in SQLite, DuckDB or PostgreSQL.

    Makes the table, loads it from a snapshot and follows every change, for good. Rows, and the
    place in the stream, are written in one transaction, so nothing is lost or done twice, whatever
    dies; start it again and it goes on. Reads NATS alone: no connection to the source's database.

    The pipeline has to serve snapshots: `tailrace bridge` does, and `tailrace run` with
    `snapshots: {}` in the pipeline's settings. With `atomic: transaction` in its sink the copy only
    ever shows whole transactions.

    Creek's producers are read with `?creek=NAMESPACE` behind the address, and `&database=NAME` if
    there are several. That needs the extra `creek`.

    Several tables are mirrored each by itself. Ctrl-C or SIGTERM ends it in order.

    \b
    Examples:
      tailrace mirror --table users --to sqlite:///local.db
      tailrace mirror --from nats://nats:4222 -t users -t sales.orders --to duckdb:///shop.db
      tailrace mirror -t users --to postgresql://me@localhost/reports --as copies.users
      tailrace mirror --from 'nats://nats:4222?creek=CREEK' -t users --to sqlite:///local.db
      TAILRACE_MIRROR=postgresql://me:secret@db/reports tailrace mirror -t users
    """
    from tailrace.mirror import Mirror, Status, target_of
    from tailrace.mirror.sources.registry import Address

    if (name is not None or key or no_key) and len(tables) > 1:
        raise ConfigError("--as, --key and --no-key are for one table", hint="Start one for each.")
    if no_key and key:
        raise ConfigError("--key and --no-key contradict each other")
    board = _board()
    chosen = () if no_key else (key or None)
    targets = [target_of(to, name or table) for table in dict.fromkeys(tables)]
    address = Address.parse(source)
    if address.creek is not None and (stream, snapshots, subjects) != _BRIDGE:
        raise ConfigError("--stream, --snapshots and --subjects are for pipelines of shape bridge")

    def made(opened: MirrorSource) -> list[Mirror]:
        return [
            Mirror(
                opened, table, target, key=chosen, fresh=fresh,
                status=Status(table=table, tell=board.tell),
            )
            for table, target in zip(dict.fromkeys(tables), targets, strict=True)
        ]  # fmt: skip

    async def run() -> None:
        async with address.opened(
            credentials=credentials, stream=stream, snapshots=snapshots, subjects=subjects
        ) as opened:
            await _run(made(opened), board)

    asyncio.run(run())


async def _run(mirrors: Sequence[Mirror], board: Board) -> None:
    """Until a signal, or until none of them can go on; then the first error is raised."""
    from tailrace.mirror import end

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    running = {asyncio.create_task(each.run()): each.status for each in mirrors}
    failed: list[TailraceError] = []
    try:
        while running and not stop.is_set():
            board.show([each.status for each in mirrors])
            done, _ = await asyncio.wait(
                {stopping, *running}, timeout=board.pause_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in running.keys() & done:
                failed.append(_failure(task))
                board.tell(running.pop(task), f"stopped: {failed[-1].code}: {failed[-1]}")
    finally:
        await end([stopping, *running])
        board.show([each.status for each in mirrors])
        board.close()
    if failed:
        raise failed[0]


def _failure(task: asyncio.Task[None]) -> TailraceError:
    error = task.exception()
    if isinstance(error, TailraceError):
        return error
    assert error is not None
    raise error


def figures(status: Status, now: datetime) -> tuple[str, str, str]:
    """What a table is at, how much of it, and how far it is behind."""
    count = f"{status.rows:,} rows"
    if status.changes:
        count += f", {status.changes:,} changes"
    lag = status.lag_s(now)
    behind = f"{status.pending:,} pending" if status.pending else "current"
    if status.phase.value != "following":
        return status.phase.value, count, ""
    return "following", count, behind if lag is None else f"{behind}, lag {seconds(lag)}"


def seconds(value: float) -> str:
    """A length of time for people.

    >>> seconds(0.25), seconds(12.34), seconds(4000)
    ('250 ms', '12.3 s', '67 min')
    """
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 600 else f"{value / 60:.0f} min"


class Board(Protocol):
    """Where mirrors show how they are doing."""

    pause_s: float

    def tell(self, status: Status, words: str) -> None:
        """Something has happened."""

    def show(self, statuses: Sequence[Status]) -> None:
        """This is how they are now."""

    def close(self) -> None:
        """Nothing more will be shown."""


class Screen:
    """A table that redraws itself; what happens stands above it."""

    pause_s = 1 / _REFRESHES_PER_S

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=_REFRESHES_PER_S)
        self._live.start()

    def tell(self, status: Status, words: str) -> None:
        """A line that stays."""
        line = Text.assemble((f"{escape(status.table)}  ", "bold"), (escape(words), "dim"))
        self._live.console.print(line)

    def show(self, statuses: Sequence[Status]) -> None:
        """Draw anew."""
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for heading in ("table", "", "copied", ""):
            table.add_column(heading, no_wrap=True)
        for status in statuses:
            phase, count, behind = figures(status, datetime.now(UTC))
            style = "green" if phase == "following" else "yellow"
            table.add_row(escape(status.table), Text(phase, style=style), count, behind)
        self._live.update(table)

    def close(self) -> None:
        """Leave the last picture."""
        self._live.stop()


class Lines:
    """A line for everything that happens, and one with figures every few seconds."""

    pause_s = _LINE_S

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, tuple[int, int]] = {}

    def tell(self, status: Status, words: str) -> None:
        """A line."""
        self._console.print(Text(f"{escape(status.table)}: {escape(words)}"))

    def show(self, statuses: Sequence[Status]) -> None:
        """A line for each table that has moved."""
        for status in statuses:
            moved = status.rows, status.changes
            if self._said.get(status.table, (0, 0)) != moved:
                self._said[status.table] = moved
                self.tell(status, " · ".join(filter(None, figures(status, datetime.now(UTC)))))

    def close(self) -> None:
        """Nothing to give back."""


def _board() -> Board:
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        return Lines(console)
    sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return Screen(Console(stderr=True, highlight=False, markup=False, emoji=False))
