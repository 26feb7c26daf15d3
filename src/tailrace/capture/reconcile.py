"""Reconciliation: may this log go on with this slot of this server?

Run at every connection, before the first byte is streamed. PostgreSQL answers a start behind the
slot's position by silently skipping ahead, so nobody but us can notice a gap. Pure: it is given
what the server and the log say, and either names where to start or raises the named state.
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
    """The slot's own position, if the slot can be read at all."""
    if slot is None:
        if log_exists:
            raise SlotLostError(f"the slot {name} is gone, but the log still needs it")
        raise PostgresRefusedError(
            f"there is no slot {name}", hint="Create it first: tailrace init"
        )
    if slot.plugin != PLUGIN:
        raise PostgresRefusedError(
            f"the slot {name} decodes with {slot.plugin}, Tailrace needs {PLUGIN}",
            hint="Choose another source.slot, or drop this one and run: tailrace init",
        )
    if slot.database != system.database:
        raise PostgresRefusedError(
            f"the slot {name} belongs to the database {slot.database}, not {system.database}",
            hint="Correct dbname in source.dsn, or choose another source.slot.",
        )
    if slot.lost:
        reason = slot.invalidation_reason or "its WAL is gone"
        raise SlotLostError(f"PostgreSQL has invalidated the slot {name}: {reason}")
    if slot.confirmed_flush_lsn is None:
        raise SlotLostError(f"the slot {name} has no position")
    return slot.confirmed_flush_lsn


def check_publication(name: str, *, exists: bool) -> None:
    """Without its publication PostgreSQL sends an error or, from 18 on, nothing at all."""
    if not exists:
        raise PostgresRefusedError(
            f"there is no publication {name}",
            hint="Create it before anything is written: tailrace init, or CREATE PUBLICATION. "
            "Changes made without it can not be read with this slot.",
        )


def check_log(
    mark: Mark,
    held: Identity,
    wanted: Identity,
    *,
    system: System,
    confirmed: Lsn,
    history: Callable[[int], str],
) -> None:
    """Whether a log that ends at `mark` continues on this server."""
    if held.system_identifier != system.identifier:
        raise DivergedError(
            f"the log holds changes of the server {held.system_identifier}, "
            f"this one is {system.identifier}"
        )
    if held.database != wanted.database:
        raise DivergedError(
            f"the log holds changes of the database {held.database}, not {wanted.database}"
        )
    _check_timeline(mark, held.timeline, system, history)
    if mark.end_lsn > system.flushed:
        raise DivergedError(
            f"the log ends at {mark.end_lsn}, the server only at {system.flushed}: "
            "it has lost changes that the log holds"
        )
    if confirmed > mark.end_lsn:
        raise GapError(
            f"the slot {wanted.slot} is at {confirmed}, the log ends at {mark.end_lsn}: "
            "the changes between them are lost to this log"
        )


def _check_timeline(
    mark: Mark, timeline: int, system: System, history: Callable[[int], str]
) -> None:
    if timeline == system.timeline:
        return
    if timeline > system.timeline:
        raise DivergedError(
            f"the log is on timeline {timeline}, the server on the older {system.timeline}"
        )
    switched = switch_point(history(system.timeline), timeline)
    if switched is None:
        raise DivergedError(f"timeline {system.timeline} does not descend from {timeline}")
    if mark.end_lsn > switched:
        raise DivergedError(
            f"the log ends at {mark.end_lsn}, but timeline {timeline} was left at {switched}: "
            "the log holds changes that the new primary never had"
        )


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
    """What a new segment says about its source."""
    return Identity(
        system_identifier=system.identifier,
        timeline=system.timeline,
        database=system.database,
        slot=slot,
        publication=publication,
    )
