"""Checks of the server: version, settings, free slots and WAL senders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.finding import check, error, info, warning
from tailrace.postgres.bootstrap import allows_logical_decoding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.finding import Finding
    from tailrace.postgres.preflight.facts import Facts

OLDEST, NEWEST = 14, 18

# The minor releases of August 2025. Before them, a transaction that was open while a publication
# or table changed was decoded with stale caches and lost rows (P64); the first repair, of May,
# could run out of memory (bug 18938); and a late acknowledgement could move a slot back (P53).
SAFE_MINOR = {14: 19, 15: 14, 16: 10, 17: 6}

KEEP_MB = 1024
IDLE_S = 24 * 3600
SENDER_TIMEOUT_MS = 10_000
RELOAD = "SELECT pg_reload_conf();"


@check("server-version", "the server's version is supported and has the known fixes")
def version(facts: Facts) -> Iterator[Finding]:
    """Report a version that is too old, not tested, or known to lose changes."""
    major, minor = divmod(facts.version, 10_000)
    safe = SAFE_MINOR.get(major, 0)
    if major < OLDEST:
        yield error(
            f"PostgreSQL {major} is not supported", f"Upgrade to PostgreSQL {OLDEST} or newer."
        )
    elif major > NEWEST:
        yield info(f"PostgreSQL {major} is newer than the latest tested version, {NEWEST}")
    elif minor < safe:
        yield warning(
            f"PostgreSQL {major}.{minor} can lose changes of transactions that are open while a "
            "table or publication is altered",
            f"Update to {major}.{safe} or a later {major}.x.",
        )


@check("primary", "the server is a primary")
def primary(facts: Facts) -> Iterator[Finding]:
    """A standby can decode from version 16 on, but without heartbeats and new publications."""
    if facts.standby:
        finding = error if facts.version < 160_000 else warning
        yield finding(
            "the server is a standby", "Connect to the primary: target_session_attrs=read-write"
        )


@check("wal-level", "wal_level is logical")
def wal_level(facts: Facts) -> Iterator[Finding]:
    """Logical decoding needs wal_level = logical."""
    level = facts.settings["wal_level"]
    if not allows_logical_decoding(level, facts.settings.get("effective_wal_level")):
        yield error(
            f"wal_level is {level}",
            "ALTER SYSTEM SET wal_level = logical; -- then restart PostgreSQL",
        )


@check("encoding", "the database is in UTF8")
def encoding(facts: Facts) -> Iterator[Finding]:
    """PostgreSQL converts text to UTF-8, except from SQL_ASCII."""
    if facts.encoding == "SQL_ASCII":
        yield warning(
            "the database's encoding is SQL_ASCII: captured text may be invalid UTF-8",
            "Dump and restore into a database WITH ENCODING 'UTF8' TEMPLATE template0.",
        )
    elif facts.encoding != "UTF8":
        yield info(f"the database's encoding is {facts.encoding}; its text is captured as UTF-8")


@check("max-slot-wal-keep-size", "max_slot_wal_keep_size limits the WAL kept for the slot")
def keep_size(facts: Facts) -> Iterator[Finding]:
    """Without a limit the server's disk can fill up; with a small one the slot is lost early."""
    megabytes = facts.setting("max_slot_wal_keep_size")
    if megabytes == -1:
        yield warning(
            "max_slot_wal_keep_size is -1: a stopped capture can fill the server's disk with WAL",
            f"ALTER SYSTEM SET max_slot_wal_keep_size = '64GB'; {RELOAD}",
        )
    elif megabytes < KEEP_MB:
        yield warning(
            f"max_slot_wal_keep_size is {megabytes} MB: a short stop of capture loses the slot",
            f"ALTER SYSTEM SET max_slot_wal_keep_size = '64GB'; {RELOAD}",
        )


@check("idle-slot-timeout", "idle_replication_slot_timeout does not invalidate the slot")
def idle_timeout(facts: Facts) -> Iterator[Finding]:
    """From PostgreSQL 18 on, the server may invalidate a slot that is not read for some time."""
    seconds = facts.setting("idle_replication_slot_timeout")
    if seconds:
        finding = warning if seconds < IDLE_S else info
        yield finding(
            f"idle_replication_slot_timeout is {seconds} s: a longer stop loses the slot",
            f"ALTER SYSTEM SET idle_replication_slot_timeout = 0; {RELOAD}",
        )


@check("free-slots", "a replication slot is free")
def free_slots(facts: Facts) -> Iterator[Finding]:
    """Matters only before `tailrace init` has created the slot."""
    limit = facts.setting("max_replication_slots")
    if facts.slot is None and facts.slots_used >= limit:
        yield error(
            f"all {limit} replication slots are in use",
            f"ALTER SYSTEM SET max_replication_slots = {limit + 10}; -- then restart PostgreSQL",
        )


@check("free-senders", "a WAL sender is free")
def free_senders(facts: Facts) -> Iterator[Finding]:
    """Matters only while capture does not run: a running capture has its sender."""
    limit = facts.setting("max_wal_senders")
    running = facts.slot is not None and facts.slot.active_pid is not None
    if not running and facts.senders_used >= limit:
        yield error(
            f"all {limit} WAL senders are in use",
            f"ALTER SYSTEM SET max_wal_senders = {limit + 10}; -- then restart PostgreSQL",
        )


@check("wal-sender-timeout", "wal_sender_timeout is set and not too short")
def sender_timeout(facts: Facts) -> Iterator[Finding]:
    """With 0 a dead capture keeps the slot busy; a short timeout ends slow connections."""
    milliseconds = facts.setting("wal_sender_timeout")
    fix = f"ALTER SYSTEM SET wal_sender_timeout = '60s'; {RELOAD}"
    if milliseconds == 0:
        yield info(
            "wal_sender_timeout is 0: after a lost connection the slot stays busy until TCP "
            "times out",
            fix,
        )
    elif milliseconds < SENDER_TIMEOUT_MS:
        yield warning(
            f"wal_sender_timeout is {milliseconds} ms: a short stall ends the connection", fix
        )


CHECKS = (
    version,
    primary,
    wal_level,
    encoding,
    keep_size,
    idle_timeout,
    free_slots,
    free_senders,
    sender_timeout,
)
