"""Takeover: a machine with a copy of the log becomes the one that writes it.

PostgreSQL is the referee. Each term has a slot of its own (`tailrace.log.term`), and the candidate
for term N + 1 copies the slot of the highest term N. A name can be created once, so a term has one
winner. The steps, under the lock of the log:

    1  recover the log, and read the slots of all terms
    2  compare the log with the server's history and with the slot of term N
    3  copy that slot to term N + 1                     from here on the old leader is fenced
    4  compare again, (b) and (d): between 1 and 3 the old leader may have acknowledged, and dropped
       the slots of older terms
    5  write the lease of term N + 1                    from here on capture may start here
    6  end the sessions of the old slots, and drop them, the oldest first; in mode sync capture
       drops them, when a quorum of followers has the new term
    7  read the terms again: another candidate may have begun a later one meanwhile

A takeover that ends after any step can be repeated, here or on any other machine, the old leader
included. The slot that it leaves is then the one of the highest term. A candidate cannot know that
it created that slot itself, and need not: it takes over from it, as from any other.

Which log may take over:

    a  the log continues on the server's timeline (`reconcile.check_history`), else DIVERGED
    b  it ends at or after `confirmed_flush_lsn` of the new slot, else GAP
    c  N is at least the highest term that the log has seen, else SLOT_LOST
    d  in mode sync, its last entry is not of a term before the oldest slot's, else GAP

The term in which the log was written does not matter, also not if its last changes were captured by
a leader that had already been deposed. A log is complete up to its end: each session of capture has
begun where the log ends, with a slot that was not confirmed beyond. PostgreSQL sends transactions
in the order of their commits, and positions are commit LSNs with ordinals. So on one timeline all
logs of a source hold the same changes at the same positions, as far as they go. What a deposed
leader has captured after its term is what the new leader captures, too. If PostgreSQL itself has
lost it in a failover, (a) refuses the log. Only the bytes differ: how transactions are grouped in
entries, and their epochs. Therefore a term begins with a new segment, and followers compare terms.

Without (c), the slot of a term that the log has seen would be missing. Candidates that have seen
different terms would then choose different names for their copies, and could both win. Without (d)
a machine that missed a term could win with all changes, and its followers would cut their own back
to what it has: until they have caught up, what a quorum had acknowledged would be on one machine.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.capture import reconcile
from tailrace.capture.replication import Replication
from tailrace.errors import (
    GapError,
    LogFencedError,
    LogMissingError,
    SlotBusyError,
    SlotLostError,
    TailraceError,
    TakenOverError,
)
from tailrace.log.format.segment import list_segments
from tailrace.log.lease import last_epoch, lead, locked, raise_epoch
from tailrace.log.reader import Log
from tailrace.log.recovery import recover
from tailrace.log.term import slot_name, term_of
from tailrace.observe import failpoint
from tailrace.postgres.catalog import publication_exists
from tailrace.postgres.connection import connect
from tailrace.postgres.names import quote_ident, quote_literal
from tailrace.postgres.slot import FAILOVER_VERSION
from tailrace.postgres.slot_terms import (
    check_may_end,
    check_not_taken_over,
    copy_slot,
    drop_after_reader,
    drop_if_exists,
    end_reader,
    read_reader,
    read_terms,
    refuse_synchronised,
)
from tailrace.replica.copy import cut_torn_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from tailrace.config import Config
    from tailrace.log.format.layout import Identity
    from tailrace.log.format.mark import Mark
    from tailrace.log.store import Store
    from tailrace.position import Lsn
    from tailrace.postgres.slot import SlotState
    from tailrace.postgres.slot_terms import Reader

_DROP_S = 10.0
_LOCK_HINT = "Stop `tailrace follow`, or capture, on this folder first."
_NO_LOG_HINT = "Run the takeover on a machine that holds a copy of the log, or set log.path to it."
_GAP_HINT = (
    "Take over on the machine whose log ends last: `tailrace takeover --dry-run` shows where. If "
    "no machine has the changes, they are lost: see docs/guides/takeover.md"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLog:
    """The copy of the log on this machine: its end, and the highest term that it has seen."""

    mark: Mark
    identity: Identity
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A takeover that is possible, and what it will change."""

    end: Lsn
    """Where the log ends and the new leader continues."""
    log_term: int
    source: SlotState
    """The slot of the highest term."""
    confirmed: Lsn
    term: int
    """The new term."""
    copy: str
    """The slot of the new term."""
    old: tuple[SlotState, ...]
    """The slots to drop, the oldest first."""
    waits: bool
    """Whether capture drops them later, when a quorum of followers has the new term."""
    readers: tuple[tuple[str, Reader], ...]
    """The slots that are being read, and their sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A takeover that has succeeded."""

    term: int
    slot: str
    end: Lsn
    dropped: tuple[str, ...]
    warnings: tuple[str, ...]
    """What an operator has to finish by hand."""


def make_plan(config: Config, store: Store, *, recovering: bool = False) -> Plan:
    """Compare the log with PostgreSQL. Changes nothing there. Raises if no takeover is possible.

    Without `recovering` it needs no lock and changes nothing in the log either. It then trusts the
    durable mark, which may be older than the log after a power loss.
    """
    local = _recover(store) if recovering else _read(store)
    with _connected(config) as (sql, replication):
        return _plan(config, local, sql, replication)


def take_over(
    config: Config, store: Store, *, force: bool = False, drop_s: float = _DROP_S
) -> Outcome:
    """Begin the next term with this copy of the log. `force` ends the session of a live leader.

    Changes nothing in PostgreSQL if a check fails.
    """
    with locked_for_takeover(store):
        local = _recover(store)
        with _connected(config) as (sql, replication):
            plan = _plan(config, local, sql, replication)
            if not force:
                refuse_live_leader(plan)
            for name, reader in plan.readers:
                check_may_end(sql, name, reader)
            copy_slot(sql, plan.source.name, plan.copy)
            failpoint.hit("takeover.after-copy")
            _check_copy(config, local, plan, sql)
            raise_epoch(store, plan.term)
            lead(store)
            failpoint.hit("takeover.after-lease")
            outcome = _finish(plan, sql, replication, drop_s)
            base = config.source.slot
            check_not_taken_over(read_terms(sql, base), base=base, term=plan.term)
            return outcome


@contextlib.contextmanager
def locked_for_takeover(store: Store) -> Iterator[None]:
    """Hold the lock of the log. Raises LogFencedError if capture or a follower holds it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(store))
        except LogFencedError as error:
            raise LogFencedError(str(error), hint=_LOCK_HINT) from error
        yield


def _read(store: Store) -> LocalLog:
    """The log as readers see it."""
    if not list_segments(store):
        raise LogMissingError(f"there is no log in {store}", hint=_NO_LOG_HINT)
    log = Log(store)
    mark = log.durable_end()
    header = log.header(log.visible_segments(mark)[-1])
    return LocalLog(mark=mark, identity=header.identity, term=term_of(last_epoch(store)))


def _recover(store: Store) -> LocalLog:
    """The log as capture will find it."""
    cut_torn_end(store)
    state = recover(store)
    if state is None:
        raise LogMissingError(f"there is no log in {store}", hint=_NO_LOG_HINT)
    term = term_of(max(last_epoch(store), state.mark.epoch))
    return LocalLog(mark=state.mark, identity=state.identity, term=term)


@contextlib.contextmanager
def _connected(config: Config) -> Iterator[tuple[Connection, Replication]]:
    dsn, timeout_s = config.source.dsn.get_secret_value(), config.capture.connect_timeout_s
    replication = Replication.connect(dsn, timeout_s=timeout_s, stopping=lambda: False)
    try:
        with connect(dsn, application_name="tailrace takeover", connect_timeout_s=timeout_s) as sql:
            yield sql, replication
    finally:
        replication.close()


def _plan(config: Config, local: LocalLog, sql: Connection, replication: Replication) -> Plan:
    source, system = config.source, replication.identify()
    current = reconcile.identity(system, slot=source.slot, publication=source.publication)
    end = reconcile.check_history(
        local.mark,
        local.identity,
        current,
        system=system,
        history=replication.timeline_history,
    )
    terms = read_terms(sql, source.slot)
    highest = _highest(source.slot, local.term, terms, system.database)
    slot = terms[highest]
    confirmed = reconcile.check_slot(slot.name, slot, system, log_exists=True)
    refuse_synchronised(sql, slot)
    reconcile.check_publication(
        source.publication, exists=publication_exists(sql, source.publication)
    )
    check_end(end, slot.name, confirmed)
    if config.replication.waits_for:
        _check_newest(local, min(terms), source.slot)
    readers = ((each.name, read_reader(sql, each.name)) for each in terms.values())
    return Plan(
        end=end,
        log_term=local.term,
        source=slot,
        confirmed=confirmed,
        term=highest + 1,
        copy=slot_name(source.slot, highest + 1),
        old=tuple(terms.values()),
        waits=config.replication.waits_for > 0,
        readers=tuple((name, reader) for name, reader in readers if reader is not None),
    )


def _highest(base: str, log_term: int, terms: dict[int, SlotState], database: str) -> int:
    """The highest term that has a slot. Refuses one lower than the log's."""
    if not terms:
        raise SlotLostError(
            f"database {database} has no replication slot {base} and none of a later term",
            hint="PostgreSQL keeps nothing to continue with. Check source.dsn and source.slot. "
            "Otherwise start over with a new log: see docs/guides/takeover.md",
        )
    highest = max(terms)
    if highest < log_term:
        raise SlotLostError(
            f"the log has seen term {log_term}, but its slot {slot_name(base, log_term)} is "
            f"missing: the latest slot is {slot_name(base, highest)}, of term {highest}",
            hint="After a failover of PostgreSQL the new primary may lack the slot: see "
            "docs/guides/takeover.md",
        )
    return highest


def _check_newest(local: LocalLog, lowest: int, base: str) -> None:
    """In mode sync, refuse a log that was left behind by a leader whose term has a quorum.

    It may hold every change, but followers would remove what that quorum has acknowledged, and for
    a while this machine alone would have it.
    """
    written = term_of(local.mark.epoch)
    if written < lowest:
        raise GapError(
            f"the log was written in term {written}, and a quorum already has entries of a later "
            f"one: the oldest slot is {slot_name(base, lowest)}",
            hint="Take over on a machine that followed the last leader. If none is left, set "
            "replication.mode to async for this takeover.",
        )


def check_end(end: Lsn, slot: str, confirmed: Lsn) -> None:
    """Refuse a log that ends before what the slot has released."""
    if confirmed > end:
        raise GapError(
            f"the log ends at {end}, but slot {slot} is confirmed up to {confirmed}: "
            f"{confirmed - end:,} bytes of WAL are missing in this copy",
            hint=_GAP_HINT,
        )


def refuse_live_leader(plan: Plan) -> None:
    """Refuse to depose a leader that streams."""
    for slot, reader in plan.readers:
        raise SlotBusyError(
            f"slot {slot} is active: {reader} reads it, so the present leader is alive",
            hint="Stop the leader. Or run the takeover with --force: it ends that session, and the "
            "leader stops as FENCED.",
        )


def _check_copy(config: Config, local: LocalLog, plan: Plan, sql: Connection) -> None:
    """Refuse a copy that came too late. It is dropped: it would fence the leader for nothing."""
    terms = read_terms(sql, config.source.slot)
    copy = terms.get(plan.term)
    try:
        if copy is None or max(terms) > plan.term:
            raise TakenOverError(
                f"slot {slot_name(config.source.slot, max(terms, default=0))} has just been "
                f"created: another candidate has taken over after term {plan.term}"
            )
        assert copy.confirmed_flush_lsn is not None
        check_end(plan.end, copy.name, copy.confirmed_flush_lsn)
        if plan.waits:
            _check_newest(local, min(terms), config.source.slot)
    except TailraceError as error:
        try:
            drop_if_exists(sql, plan.copy)
        except TailraceError as failure:
            error.hint += (
                f" Slot {plan.copy} was not dropped ({failure}), and stops the present leader: "
                f"SELECT pg_drop_replication_slot({quote_literal(plan.copy)});"
            )
        raise


def _finish(plan: Plan, sql: Connection, replication: Replication, drop_s: float) -> Outcome:
    """Bring the slots in order. The takeover counts already, so failures are warnings."""
    warnings = list(_keep_failover(plan, sql, replication))
    for slot in plan.old:
        with contextlib.suppress(TailraceError):  # it is repeated, and reported, below
            end_reader(sql, slot.name)
    failpoint.hit("takeover.after-terminate")
    dropped: list[str] = []
    for slot in () if plan.waits else plan.old:
        try:
            drop_after_reader(sql, slot.name, wait_s=drop_s)
        except TailraceError as error:
            warnings.append(
                f"slot {slot.name} was not dropped, so PostgreSQL keeps WAL for it: {error}. If "
                "the old leader still reads it, stop that machine. Then run: "
                f"SELECT pg_drop_replication_slot({quote_literal(slot.name)});"
            )
            break
        dropped.append(slot.name)
    return Outcome(
        term=plan.term,
        slot=plan.copy,
        end=plan.end,
        dropped=tuple(dropped),
        warnings=tuple(warnings),
    )


def _keep_failover(plan: Plan, sql: Connection, replication: Replication) -> Iterator[str]:
    """Mark the copy for failover if an old slot was: PostgreSQL does not copy that."""
    if sql.info.server_version < FAILOVER_VERSION or not any(each.failover for each in plan.old):
        return
    command = f"ALTER_REPLICATION_SLOT {quote_ident(plan.copy)} (FAILOVER true)"
    try:
        replication.query(command)
    except TailraceError as error:
        yield (
            f"slot {plan.copy} is not marked for failover: {error}. Before capture starts, run on "
            f"a replication connection: {command};"
        )
