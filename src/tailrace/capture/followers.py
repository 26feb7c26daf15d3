"""What capture does for the followers of its log: the gate of its acknowledgements, the mark for
readers that wait for a quorum, and the slots of older terms after a takeover."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.capture.gate import Gate
from tailrace.errors import TailraceError
from tailrace.log import acknowledged
from tailrace.log.format import mark as marks
from tailrace.postgres.connection import connect
from tailrace.postgres.slot_terms import (
    check_not_taken_over,
    drop_after_reader,
    old_slots,
    read_terms,
)

if TYPE_CHECKING:
    from psycopg import Connection

    from tailrace.config import Config
    from tailrace.log.format.mark import Mark
    from tailrace.log.store import Store


def open_gate(config: Config, store: Store, end: Mark, sql: Connection, *, term: int) -> Gate:
    """The gate of a session that continues at `end`."""
    replication = config.replication
    if not replication.hides:
        store.remove(marks.VISIBLE)
    elif marks.read(store, marks.VISIBLE) is None:
        marks.write(store, end, name=marks.VISIBLE, durably=True)
    acknowledged.prepare(store, replication.waits_for)
    old = old_slots(sql, config.source.slot, term)
    if not replication.waits_for:
        # A takeover was unable to drop them.
        for slot in old:
            structlog.get_logger().warning(
                "capture.old_slot_exists",
                slot=slot.name,
                kept_wal_bytes=slot.kept_wal_bytes,
                fix=f"SELECT pg_drop_replication_slot('{slot.name}');",
            )
    return Gate(store, replication.waits_for, term=term, settled=not old)


def settle(config: Config, gate: Gate, *, term: int) -> None:
    """A quorum has the new term: the slots of older terms have done their work."""
    dsn, timeout_s = config.source.dsn.get_secret_value(), config.capture.connect_timeout_s
    dropped = []
    try:
        with connect(dsn, connect_timeout_s=timeout_s) as sql:
            for slot in old_slots(sql, config.source.slot, term):
                drop_after_reader(sql, slot.name, wait_s=0)
                dropped.append(slot.name)
    except TailraceError as error:
        structlog.get_logger().warning(
            "capture.old_slot_stays", code=error.code, reason=str(error), hint=error.hint
        )
        return
    gate.settle()
    structlog.get_logger().info("capture.old_slots_dropped", slots=dropped)


def check_leads(config: Config, *, term: int) -> None:
    """Raise TakenOverError if there is a slot of a later term, whose WAL nothing may release.

    Usually a takeover ends the session of this machine, but the takeover itself may have ended.
    """
    source, timeout_s = config.source, config.capture.connect_timeout_s
    try:
        with connect(source.dsn.get_secret_value(), connect_timeout_s=timeout_s) as sql:
            terms = read_terms(sql, source.slot)
    except TailraceError as error:
        structlog.get_logger().warning(
            "capture.terms_unknown", code=error.code, reason=str(error), hint=error.hint
        )
        return
    check_not_taken_over(terms, base=source.slot, term=term)
