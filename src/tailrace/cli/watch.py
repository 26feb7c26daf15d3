"""`tailrace watch`: the watchdog, as a process of `tailrace run` or as a service of its own."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tailrace import private
from tailrace.cli import options


def watch(
    *,
    follower: Annotated[
        bool, typer.Option("--follower", help="Of a machine that follows a leader: no source.")
    ] = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
    slot: options.Slot = None,
    publication: options.Publication = None,
    log: options.LogPath = None,
) -> None:
    """Check the health of a running system, and send alerts.

    With a section `alerts` in the settings, `tailrace run` and `tailrace follow` start this
    process. It shares only files with the others, so it notices when they hang. With
    `alerts.supervised: false`, run it as a service of its own: it then also reports that
    `tailrace run` has ended, and reads its settings again when `tailrace run` has loaded others.

    `tailrace health` shows what it found, `tailrace alert ls` what it has sent.

    \b
    Example:
      tailrace watch -c tailrace.yml
    """
    from tailrace.observe import logs
    from tailrace.process import become
    from tailrace.run.lock import data_folder_lock
    from tailrace.watch.watchdog import run_watch

    private.restrict_new_files()
    logs.configure()
    settings = options.settings(config, dsn=dsn, slot=slot, publication=publication, log=log)
    if follower:
        replication = settings.replication.model_copy(update={"followers": ()})
        settings = settings.model_copy(update={"pipelines": {}, "replication": replication})
    with data_folder_lock(settings.data / "status", "watch"):
        reloaded = run_watch(settings, follower=follower)
    if reloaded:
        become(*sys.argv[1:])
