"""The slots of the terms of a log (`tailrace.log.term`): which exist, and the steps of a takeover.

Slots are those of one database. A name such as `shop_e2` always counts as the slot of term 2 of
`shop`: no other source of the same database may have it as its `source.slot`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from tailrace.errors import (
    PostgresRefusedError,
    SlotBusyError,
    SlotLostError,
    TailraceError,
    TakenOverError,
)
from tailrace.log.lease import last_epoch
from tailrace.log.store import LocalStore
from tailrace.log.term import slot_name, term_of, term_of_slot
from tailrace.postgres.connection import translate_error
from tailrace.postgres.names import quote_ident
from tailrace.postgres.slot import drop_slot, read_slot, read_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from psycopg import Connection

    from tailrace.config import Config
    from tailrace.postgres.slot import SlotState

_POLL_S = 0.05


def present_term(config: Config) -> int:
    """The term of the log in the configured folder; 0 if there is none."""
    return term_of(last_epoch(LocalStore(config.log.path)))


def read_terms(connection: Connection, base: str) -> dict[int, SlotState]:
    """The slots of all terms that exist in this database, by term, in ascending order."""
    named = ((term_of_slot(slot.name, base), slot) for slot in read_slots(connection, base))
    return dict(sorted((term, slot) for term, slot in named if term is not None))


def old_slots(connection: Connection, base: str, term: int) -> list[SlotState]:
    """The slots of the terms before this one, the oldest first."""
    return [slot for each, slot in read_terms(connection, base).items() if each < term]


def check_not_taken_over(terms: Collection[int], *, base: str, term: int) -> None:
    """Refuse to continue a log in a term if PostgreSQL has the slot of a higher one."""
    highest = max(terms, default=term)
    if highest > term:
        raise TakenOverError(
            f"replication slot {slot_name(base, highest)} of term {highest} exists: another "
            f"machine has taken over the log, which is of term {term} here"
        )


def copy_slot(connection: Connection, source: str, copy: str) -> None:
    """Copy a slot, in one step: one of several callers succeeds, the others are refused."""
    try:
        connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (source, copy))
    except psycopg.errors.DuplicateObject as error:
        raise _name_taken(connection, copy) from error
    except psycopg.errors.UndefinedObject as error:
        raise TakenOverError(
            f"replication slot {source} has just been dropped: another candidate has taken over"
        ) from error
    except psycopg.Error as error:
        raise translate_error(connection, error) from error


def _name_taken(connection: Connection, name: str) -> TailraceError:
    taken = read_slot(connection, name)
    database = connection.info.dbname
    if taken is not None and taken.database != database:
        return PostgresRefusedError(
            f"replication slot {name} already exists, in database {taken.database}",
            hint="Slot names are shared by all databases of a server: choose another source.slot "
            "for one of the two sources.",
        )
    return TakenOverError(
        f"replication slot {name} already exists: another candidate has taken over"
    )


def refuse_synchronised(connection: Connection, slot: SlotState) -> None:
    """Refuse a standby's copy of a slot: the primary would not know of the takeover."""
    if not slot.synced:
        return  # a promoted standby keeps the flag, so it means nothing without the next condition
    try:
        row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    if row is not None and row[0]:
        raise PostgresRefusedError(
            f"this server is a standby, and slot {slot.name} is synchronised from its primary",
            hint="Set source.dsn to the primary, or add target_session_attrs=read-write.",
        )


def drop_if_exists(connection: Connection, name: str) -> None:
    """Drop a slot. Raises SlotBusyError while a session reads it."""
    try:
        drop_slot(connection, name)
    except SlotLostError:
        return


def drop_after_reader(
    connection: Connection, name: str, *, wait_s: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """End the session that reads a slot, and drop it. Raises SlotBusyError if it is still read.

    Callers drop the oldest slot first and stop at the first that stays: a candidate that has read
    an old list could otherwise copy an older slot to a name that is free again.
    """
    deadline = clock() + wait_s
    while True:
        try:
            end_reader(connection, name)
            drop_if_exists(connection, name)
        except SlotBusyError:
            if clock() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The session that reads a slot, as far as the role may see it."""

    pid: int
    role: str
    application: str
    address: str
    superuser: bool
    """Whether its role is a superuser."""
    may_end: bool
    """Whether the present role may end the session."""

    def __str__(self) -> str:
        origin = f" from {self.address}" if self.address else ""
        return f"server process {self.pid} ({self.application}, role {self.role}{origin})"


def read_reader(connection: Connection, slot: str) -> Reader | None:
    """The session that reads a slot; None if there is none."""
    try:
        row = connection.execute(_READER, (slot,)).fetchone()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    if row is None:
        return None
    pid, role, application, address, superuser, may_end = row
    return Reader(
        pid=pid, role=role, application=application, address=address,
        superuser=superuser, may_end=may_end,
    )  # fmt: skip


# As pg_terminate_backend decides. Addresses of other roles' sessions are hidden without
# pg_read_all_stats.
_READER = """
SELECT s.active_pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''),
       coalesce(host(a.client_addr), ''), coalesce(reader.rolsuper, false),
       own.rolsuper OR (
           NOT coalesce(reader.rolsuper, false)
           AND (pg_has_role(own.oid, 'pg_signal_backend', 'USAGE')
                OR coalesce(pg_has_role(own.oid, reader.oid, 'USAGE'), false)))
FROM pg_replication_slots s
JOIN pg_roles own ON own.rolname = current_user
LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
LEFT JOIN pg_roles reader ON reader.oid = a.usesysid
WHERE s.slot_name = %s AND s.active_pid IS NOT NULL
"""


def check_may_end(connection: Connection, slot: str, reader: Reader) -> None:
    """Refuse if the role may not end the session that reads a slot."""
    if reader.may_end:
        return
    role = quote_ident(connection.info.user)
    grant = f"GRANT pg_signal_backend TO {role};"
    raise PostgresRefusedError(
        f"role {role} may not end the session that reads slot {slot}: {reader}",
        hint="Only a superuser may end a superuser's session: stop that machine, or run the "
        "takeover as a superuser."
        if reader.superuser
        else grant,
    )


def end_reader(connection: Connection, slot: str) -> None:
    """End the session that reads a slot, if there is one. Does not wait for its end."""
    try:
        connection.execute(_END_READER, (slot,))
    except psycopg.Error as error:
        raise translate_error(connection, error) from error


_END_READER = """
SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
WHERE slot_name = %s AND active_pid IS NOT NULL
"""
