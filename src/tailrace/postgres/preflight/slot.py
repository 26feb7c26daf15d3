"""Checks of the slot, and of transactions that keep it from advancing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tailrace.finding import check, error, info, warning
from tailrace.postgres.names import quote_literal
from tailrace.postgres.slot import FAILOVER_VERSION, PLUGIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.finding import Finding
    from tailrace.postgres.preflight.facts import Facts

KEPT_WAL_BYTES = 10 * 2**30
OLD_TRANSACTION = timedelta(minutes=5)


@check("slot-exists", "the replication slot exists")
def exists(facts: Facts) -> Iterator[Finding]:
    """If a log exists, a missing slot means lost changes."""
    if facts.slot is not None or facts.taken_over is not None:
        return
    name = facts.slot_name
    if facts.log_exists:
        yield error(
            f"replication slot {name} is missing, but a log exists: changes since its end are lost",
            "Move the log folder away, run `tailrace init`, and take a new snapshot.",
        )
    else:
        yield error(
            f"replication slot {name} does not exist",
            f"SELECT pg_create_logical_replication_slot({quote_literal(name)}, '{PLUGIN}'); "
            "-- after the publication; or: tailrace init",
        )


@check("slot-term", "no other machine has taken over the log, and no slot of an old term is left")
def term(facts: Facts) -> Iterator[Finding]:
    """A slot of a higher term fences capture. One of a lower term retains WAL for no reader."""
    if facts.taken_over is not None:
        yield error(
            f"slot {facts.taken_over.name} exists: another machine has taken over the log, which "
            f"is of term {facts.term} here",
            "tailrace follow",
        )
    for number, slot in facts.terms.items():
        if number < facts.term:
            yield warning(
                f"slot {slot.name} of term {number} still exists and retains WAL; the log is of "
                f"term {facts.term}",
                f"SELECT pg_drop_replication_slot({quote_literal(slot.name)});",
                slot.name,
            )


@check("slot-usable", "the slot is a healthy pgoutput slot of this database", needs=("slot",))
def usable(facts: Facts) -> Iterator[Finding]:
    """Every reason for which START_REPLICATION would refuse the slot or send other changes."""
    slot = facts.slot
    assert slot is not None
    drop = f"SELECT pg_drop_replication_slot({quote_literal(slot.name)});"
    other = "Set source.slot to another name."
    if slot.slot_type != "logical":
        yield error(f"slot {slot.name} is a physical slot", other)
    elif slot.plugin != PLUGIN:
        yield error(f"slot {slot.name} uses the plugin {slot.plugin}, not {PLUGIN}", other)
    elif slot.database != facts.database:
        yield error(
            f"slot {slot.name} belongs to database {slot.database}, not {facts.database}", other
        )
    if slot.temporary:
        yield error(f"slot {slot.name} is temporary", other)
    if slot.lost:
        reason = slot.invalidation_reason or "its WAL was removed"
        yield error(
            f"slot {slot.name} is lost: {reason}",
            f"{drop} -- then move the log folder away, run `tailrace init`, take a new snapshot",
        )
    if slot.two_phase:
        yield warning(
            f"slot {slot.name} was created for two-phase decoding, which Tailrace does not use",
            f"{drop} -- before the first capture, then: tailrace init",
        )


@check("slot-active", "no client is reading the slot", needs=("slot",))
def active(facts: Facts) -> Iterator[Finding]:
    """The reader is usually the running capture."""
    if facts.slot and facts.slot.active_pid is not None:
        yield info(f"slot {facts.slot.name} is in use by server process {facts.slot.active_pid}")


@check("slot-wal-kept", "the server keeps little WAL for the slot", needs=("slot",))
def wal_kept(facts: Facts) -> Iterator[Finding]:
    """Before a slot is lost, its wal_status is `extended`, then `unreserved`."""
    slot = facts.slot
    assert slot is not None
    if slot.lost:
        return
    kept = (slot.kept_wal_bytes or 0) / 2**20
    start = "Start capture now: tailrace capture"
    if slot.wal_status == "unreserved":
        yield error(
            f"the next checkpoint removes the slot's WAL ({kept:,.0f} MiB) and loses the slot",
            start,
        )
    elif slot.wal_status == "extended" or (slot.kept_wal_bytes or 0) > KEPT_WAL_BYTES:
        room = f", {slot.safe_wal_bytes / 2**20:,.0f} MiB left" if slot.safe_wal_bytes else ""
        yield warning(f"the server keeps {kept:,.0f} MiB of WAL for the slot{room}", start)


@check("failover-slot", "the slot survives a failover to a standby that synchronises slots")
def failover(facts: Facts) -> Iterator[Finding]:
    """Up to PostgreSQL 16 a promoted standby has no slot; from 17 on it can have one."""
    if facts.version < FAILOVER_VERSION:
        yield info(
            "up to PostgreSQL 16 a slot does not survive a failover: expect SLOT_LOST after one",
            "Upgrade to PostgreSQL 17 or newer.",
        )
    elif facts.slot is not None and not facts.slot.failover:
        name = facts.slot.name
        yield info(
            f"slot {name} is not marked for failover",
            "On a replication connection, while no client reads the slot: "
            f"ALTER_REPLICATION_SLOT {name} (FAILOVER true);",
        )
    elif not facts.settings.get("synchronized_standby_slots"):
        yield info(
            "synchronized_standby_slots is empty: capture may be ahead of a promoted standby",
            "With standbys: ALTER SYSTEM SET synchronized_standby_slots = 'their_slot, ...';",
        )


@check("open-transactions", "no old transaction is open")
def open_transactions(facts: Facts) -> Iterator[Finding]:
    """An open transaction retains WAL, blocks the creation of a slot and delays its changes."""
    for transaction in facts.transactions:
        old = transaction.age is not None and transaction.age >= OLD_TRANSACTION
        if transaction.pid is not None and old:
            yield warning(
                f"a transaction that has written is still open: {transaction}",
                f"SELECT pg_terminate_backend({transaction.pid});",
                f"pid {transaction.pid}",
            )


@check("prepared-transactions", "there is no prepared transaction")
def prepared_transactions(facts: Facts) -> Iterator[Finding]:
    """A prepared transaction belongs to no session and stays open until COMMIT or ROLLBACK."""
    for transaction in facts.transactions:
        if transaction.gid:
            gid = quote_literal(transaction.gid)
            yield warning(
                f"{transaction} retains WAL and blocks the creation of a slot",
                f"COMMIT PREPARED {gid}; -- or: ROLLBACK PREPARED {gid};",
                transaction.gid,
            )


CHECKS = (
    exists,
    term,
    usable,
    active,
    wal_kept,
    failover,
    open_transactions,
    prepared_transactions,
)
