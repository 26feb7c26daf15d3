"""`tailrace takeover`: continue a log on this machine, from its copy here."""

# ruff: noqa: PLC0415 - psycopg and numpy are loaded when the command runs, not for --help

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace import private
from tailrace.cli import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.config import Config
    from tailrace.replica.takeover import Outcome, Plan


DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check and show what would be done; change nothing.")
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Also while the present leader reads its slot: end its session."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def takeover(
    *,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
    slot: options.Slot = None,
    publication: options.Publication = None,
    log: options.LogPath = None,
) -> None:
    """Make this machine the leader: continue capture here, with this machine's copy of the log.

    For a follower whose leader has failed. The log of this machine must contain every change that
    the leader has acknowledged to PostgreSQL; otherwise nothing is changed, and the command names
    what is missing. Then it

    \b
      1. copies the replication slot under the name of the next term: SLOT_e1, SLOT_e2 ...
      2. records the term in the log of this machine
      3. ends the session of the old leader, if it has one, and drops the old slots

    The old leader cannot continue after step 1: its capture stops with FENCED when it connects to
    PostgreSQL the next time. If several machines try, one succeeds. A takeover that was interrupted
    may be repeated, on any machine.

    Stop `tailrace follow` on this machine first. `source.slot` stays as it is on all machines. The
    role needs REPLICATION, and for --force the role of the leader or pg_signal_backend.

    \b
    Exit codes:
      10 GAP        this copy of the log lacks changes; take over on another machine
      11 SLOT_LOST  PostgreSQL has no slot to continue with
      12 DIVERGED   the log and the server have different histories
      15 FENCED     another machine was faster, or a process of this machine uses the log
      21 SLOT_BUSY  the leader is alive: stop it, or use --force
      22 REFUSED    PostgreSQL refused; the hint names the privilege that is missing

    \b
    Examples:
      See where the log and the slot are:
        tailrace takeover --dry-run
      Take over, then capture:
        tailrace takeover --yes && tailrace run tailrace.yml
    """
    private.restrict_new_files()
    settings = options.settings(config, dsn=dsn, slot=slot, publication=publication, log=log)
    _take_over(settings, dry_run=dry_run, force=force, yes=yes)


def _take_over(settings: Config, *, dry_run: bool, force: bool, yes: bool) -> None:
    from tailrace.log.store import LocalStore
    from tailrace.replica.takeover import (
        locked_for_takeover,
        make_plan,
        refuse_live_leader,
        take_over,
    )

    store = LocalStore(settings.log.path)
    with contextlib.nullcontext() if dry_run else locked_for_takeover(store):
        plan = make_plan(settings, store, recovering=not dry_run)
    for line in _lines(settings, plan):
        typer.echo(line)
    if dry_run:
        if plan.readers:
            typer.echo("The present leader is alive: the takeover needs --force.")
        typer.echo("Nothing was changed.")
        return
    if not force:
        refuse_live_leader(plan)
    if not yes:
        what = "Depose the present leader, and take over" if plan.readers else "Take over"
        typer.confirm(f"{what} with term {plan.term}?", abort=True)
    for line in _result(take_over(settings, store, force=force)):
        typer.echo(line)


def _lines(settings: Config, plan: Plan) -> Iterator[str]:
    slot, bytes_ = plan.source, plan.end - plan.confirmed
    confirmed = f"confirmed up to {plan.confirmed}, {bytes_:,} bytes before the end"
    yield f"log:       {settings.log.path}, ends at {plan.end}, term {plan.log_term}"
    yield f"slot:      {slot.name}, {confirmed}"
    yield f"WAL kept:  {slot.kept_wal_bytes or 0:,} bytes"
    if not plan.readers:
        yield "leader:    no session reads the slot"
    for name, reader in plan.readers:
        yield f"leader:    {reader} reads {name}"
    yield f"new term:  {plan.term}, with the slot {plan.copy}"
    yield f"to drop:   {', '.join(each.name for each in plan.old)}"


def _result(outcome: Outcome) -> Iterator[str]:
    yield f"This machine is the leader of term {outcome.term}, with the slot {outcome.slot}."
    if outcome.dropped:
        yield f"dropped: {', '.join(outcome.dropped)}"
    for warning in outcome.warnings:
        yield f"warning: {warning}"
    yield "next: tailrace run (or tailrace capture) on this machine"
