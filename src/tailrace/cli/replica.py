"""`tailrace replica`: the copies of a log, or the leader that a machine follows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli import options  # noqa: TC001 - typer reads the annotations
from tailrace.cli.at import At
from tailrace.cli.model_options import with_options

if TYPE_CHECKING:
    from tailrace.console.page import Document


@with_options(At)
def replica(
    *,
    at: At,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: options.ConfigFile = None,
) -> None:
    """Show the followers of this log with their lag, or the leader that this machine follows.

    \b
    Examples:
      tailrace replica
      tailrace replica --at https://db1.example.com:9090 --token-file token
    """
    found = at.system(config).get("/replicas")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    leader, follower = found["leader"], found["follower"]
    if leader is not None:
        _show_leader(console, leader)
    if follower is not None:
        of = follower["leader"] or "no leader yet"
        text = f"follower: {follower['state']}, of {of}, durable up to {follower['end_lsn']}"
        console.print(Text(text + (f", epoch {follower['epoch']}" if follower["epoch"] else "")))
        if follower["reason"]:
            console.print(Text(follower["reason"]))
    if leader is None and follower is None:
        console.print("No machine has a copy of this log: set replication.followers.")


def _show_leader(console: Console, leader: Document) -> None:
    from tailrace.console.numbers import UNKNOWN, seconds, size  # noqa: PLC0415 - not for --help

    quorum = {None: "not needed", True: "reached", False: "not reached"}[leader["in_quorum"]]
    epoch = UNKNOWN if leader["epoch"] is None else leader["epoch"]
    console.print(Text(f"leader: {leader['state']}, mode {leader['mode']}, epoch {epoch}"))
    console.print(f"quorum: {leader['quorum']} followers, {quorum}")
    table = Table(box=None, pad_edge=False)
    for heading in ("follower", "state", "durable up to", "lag", "bytes", "reason"):
        right = "right" if heading in ("lag", "bytes") else "left"
        table.add_column(heading, justify=right, no_wrap=heading != "reason")  # type: ignore[arg-type]
    for each in leader["followers"]:
        lag = UNKNOWN if each["lag_s"] is None else seconds(each["lag_s"])
        lacking = UNKNOWN if each["lag_bytes"] is None else size(each["lag_bytes"])
        table.add_row(
            Text(each["address"]), each["state"], each["acknowledged"], lag, lacking,
            Text(each["reason"]),
        )  # fmt: skip
    console.print(table)
