"""Reconciliation: may this log continue with this slot of this server?

Runs at every connection, before the first byte is streamed. PostgreSQL silently skips ahead when a
client starts before the slot's position, so only the client can notice a gap. Pure functions over
what the server and the log report; they raise the error that names the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import DivergedError, GapError, PostgresRefusedError, SlotLostError
from tailrace.log.format.layout import Identity
from tailrace.position import Lsn
from tailrace.postgres.slot import PLUGIN, SlotState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.capture.replication import System
    from tailrace.log.format.mark import Mark


def check_slot(name: str, slot: SlotState | None, system: System, *, log_exists: bool) -> Lsn:
    """The confirmed position of the slot, if the slot can be read."""
    if slot is None:
        if log_exists:
            raise SlotLostError(f"replication slot {name} is missing, but its log exists")
        raise PostgresRefusedError(
            f"replication slot {name} does not exist", hint="Create it: tailrace init"
        )
    if slot.plugin != PLUGIN:
        raise PostgresRefusedError(
            f"replication slot {name} uses the plugin {slot.plugin}, must be {PLUGIN}",
            hint="Set source.slot to another name, or drop this slot and run: tailrace init",
        )
    if slot.database != system.database:
        raise PostgresRefusedError(
            f"replication slot {name} belongs to database {slot.database}, not {system.database}",
            hint="Correct dbname in source.dsn, or set source.slot to another name.",
        )
    if slot.lost:
        reason = slot.invalidation_reason or "its WAL was removed"
        raise SlotLostError(f"PostgreSQL has invalidated replication slot {name}: {reason}")
    if slot.confirmed_flush_lsn is None:
        raise SlotLostError(f"replication slot {name} has no confirmed_flush_lsn")
    return slot.confirmed_flush_lsn


def check_publication(name: str, *, exists: bool) -> None:
    """Refuse to stream without the publication: from PostgreSQL 18 on the stream would be empty."""
    if not exists:
        raise PostgresRefusedError(
            f"publication {name} does not exist",
            hint="Create it: tailrace init. Changes committed without the publication cannot be "
            "read with this slot.",
        )


def check_history(
    mark: Mark,
    logged: Identity,
    current: Identity,
    *,
    system: System,
    history: Callable[[int], str],
) -> Lsn:
    """Where the log that ends at `mark` continues on this server. Refuses a log that cannot.

    It comes before the slot: a restored server has lost its slots too, and a new slot would not
    help. `logged` is the identity in the log and `current` that of the server. The checks, in
    order:

        system identifier or database differ         DIVERGED: another server or database
        log on a later timeline than the server      DIVERGED: a restored server
        server's timeline not a child of the log's   DIVERGED: another branch
        log has changes after the switch             DIVERGED: the new primary lacks changes
        log ends after the server's WAL              DIVERGED: the server lost changes

    A log may end after the switch of timelines without a change there: WAL that is not about rows.
    It continues at the switch, where the new timeline begins.
    """
    if logged.system_identifier != system.identifier:
        raise DivergedError(
            f"the log holds changes of server {logged.system_identifier}, "
            f"but this is server {system.identifier}"
        )
    if logged.database != current.database:
        raise DivergedError(
            f"the log holds changes of database {logged.database}, not {current.database}"
        )
    end = _end_on_timeline(mark, logged.timeline, system, history)
    if end > system.flushed:
        raise DivergedError(
            f"the log ends at {end}, but the server's WAL ends at {system.flushed}: "
            "the server has lost changes that the log holds"
        )
    return end


def check_gap(slot: str, confirmed: Lsn, end: Lsn) -> None:
    """Refuse a slot that has been confirmed after the end of the log."""
    if confirmed > end:
        raise GapError(
            f"replication slot {slot} is at {confirmed}, but the log ends at {end}: the changes "
            "between them are lost"
        )


def _end_on_timeline(
    mark: Mark, timeline: int, system: System, history: Callable[[int], str]
) -> Lsn:
    """The end of the log, or the end of its timeline if the log has no change after it."""
    if timeline == system.timeline:
        return mark.end_lsn
    if timeline > system.timeline:
        raise DivergedError(
            f"the log is on timeline {timeline}, but the server is on the older timeline "
            f"{system.timeline}"
        )
    switched = switch_point(history(system.timeline), timeline)
    if switched is None:
        raise DivergedError(
            f"the server's timeline {system.timeline} does not descend from the log's {timeline}"
        )
    # A timeline ends between two WAL records, so a commit that begins before the end is on both.
    if mark.position.lsn >= switched:
        raise DivergedError(
            f"the log has changes up to {mark.position}, but timeline {timeline} ended at "
            f"{switched}: the new primary never received them, or the server was restored to an "
            "earlier time"
        )
    return min(mark.end_lsn, switched)


def switch_point(history: str, timeline: int) -> Lsn | None:
    """Where a timeline ended, from a timeline history file.

    >>> switch_point("1\\t0/5000110\\tno recovery target specified\\n", 1)
    Lsn('0/5000110')
    """
    for line in history.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == str(timeline):
            return Lsn.parse(fields[1])
    return None


def identity(system: System, *, slot: str, publication: str) -> Identity:
    """The identity that new segments of the log record."""
    return Identity(
        system_identifier=system.identifier,
        timeline=system.timeline,
        database=system.database,
        slot=slot,
        publication=publication,
    )
