"""Every check over facts in memory: a healthy source passes, and each deviation has its finding."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.config import load
from tailrace.finding import Severity
from tailrace.position import Lsn
from tailrace.postgres.names import TableName
from tailrace.postgres.preflight import CHECKS, examine
from tailrace.postgres.preflight.facts import Facts, Link, Role, RoleSetting
from tailrace.postgres.publication import PublicationState, PublishedTable
from tailrace.postgres.slot import OpenTransaction, SlotState
from tailrace.postgres.table_state import TableState

if TYPE_CHECKING:
    from tailrace.finding import Finding

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
ORDERS = TableName("public", "orders")
TABLE = TableState(
    namespace="public", name="orders", partitioned=False, partition=False, replica_identity="d",
    row_security=False, unidentified=[], toasted=False, primary_key=["id"], identity=["id"],
    columns=["id", "total"], stored=[], virtual=[], money=[], selectable=True, schema_usable=True,
)  # fmt: skip
SLOT = SlotState(
    name="tailrace", plugin="pgoutput", slot_type="logical", database="shop", temporary=False,
    active_pid=None, restart_lsn=Lsn(1), confirmed_flush_lsn=Lsn(1), wal_status="reserved",
    safe_wal_bytes=None, kept_wal_bytes=0, failover=True,
)  # fmt: skip
PUBLICATION = PublicationState(
    name="tailrace", all_tables=False, insert=True, update=True, delete=True, truncate=True,
    via_root=True, generated_columns=False, tables=(PublishedTable(table=ORDERS),),
)  # fmt: skip
SETTINGS = {
    "wal_level": "logical", "max_replication_slots": "10", "max_wal_senders": "10",
    "wal_sender_timeout": "60000", "max_slot_wal_keep_size": "65536",
    "idle_replication_slot_timeout": "0", "synchronized_standby_slots": "standby",
}  # fmt: skip
HEALTHY = Facts(
    config=load(None), log_exists=False, version=180_001, standby=False, encoding="UTF8",
    database="shop", settings=SETTINGS, slots_used=1, senders_used=1,
    role=Role(
        name="reader", superuser=False, replication=True, bypasses_row_security=False,
        sees_activity=True,
    ),
    link=Link(local=False, loopback=False, encrypted=True, sslmode="verify-full"),
    role_settings=(), slot=SLOT, publication=PUBLICATION, overlaps=(), tables=[TABLE],
    unlogged=(), transactions=(),
)  # fmt: skip
WRITER = OpenTransaction(
    pid=7, gid="", application="app", age=timedelta(minutes=6), query_start=None
)


def with_settings(**values: str) -> Facts:
    return replace(HEALTHY, settings=SETTINGS | values)


def with_table(**fields: Any) -> Facts:
    return replace(HEALTHY, tables=[replace(TABLE, **fields)])


def with_slot(**fields: Any) -> Facts:
    return replace(HEALTHY, slot=replace(SLOT, **fields))


def with_publication(**fields: Any) -> Facts:
    return replace(HEALTHY, publication=replace(PUBLICATION, **fields))


def with_role(**fields: Any) -> Facts:
    return replace(HEALTHY, role=replace(HEALTHY.role, **fields))


def problems(facts: Facts) -> list[Finding]:
    return [finding for finding in examine(facts) if finding.severity is not Severity.OK]


def test_a_healthy_source_passes_every_check() -> None:
    findings = examine(HEALTHY)
    assert [finding.check for finding in findings] == [check.name for check in CHECKS]
    assert problems(HEALTHY) == []


CASES: dict[str, tuple[Facts, str, Severity, str]] = {
    "minor release": (replace(HEALTHY, version=170_005), "server-version", WARNING, "17.5 can"),
    "standby": (replace(HEALTHY, standby=True), "primary", WARNING, "is a standby"),
    "wal level": (with_settings(wal_level="replica"), "wal-level", ERROR, "wal_level is replica"),
    "minimal wal level": (
        with_settings(wal_level="minimal", effective_wal_level="minimal"), "wal-level", ERROR,
        "wal_level is minimal",
    ),
    "encoding": (replace(HEALTHY, encoding="SQL_ASCII"), "encoding", WARNING, "invalid UTF-8"),
    "no limit": (
        with_settings(max_slot_wal_keep_size="-1"), "max-slot-wal-keep-size", WARNING, "fill",
    ),
    "small limit": (
        with_settings(max_slot_wal_keep_size="100"), "max-slot-wal-keep-size", WARNING, "100 MB",
    ),
    "idle timeout": (
        with_settings(idle_replication_slot_timeout="60"), "idle-slot-timeout", WARNING, "60 s",
    ),
    "no timeout": (with_settings(wal_sender_timeout="0"), "wal-sender-timeout", INFO, "is 0"),
    "short timeout": (
        with_settings(wal_sender_timeout="500"), "wal-sender-timeout", WARNING, "500 ms",
    ),
    "senders": (replace(HEALTHY, senders_used=10), "free-senders", ERROR, "all 10 WAL senders"),
    "replication": (with_role(replication=False), "role-replication", ERROR, "no REPLICATION"),
    "superuser": (with_role(superuser=True), "role-superuser", WARNING, "is a superuser"),
    "activity": (with_role(sees_activity=False), "role-activity", INFO, "does not see"),
    "select": (with_table(selectable=False), "role-select", WARNING, "may not read the table"),
    "statement timeout": (
        replace(
            HEALTHY,
            role_settings=[RoleSetting(scope="role", name="statement_timeout", value="5s")],
        ),
        "role-settings", WARNING, "would end a long snapshot",
    ),
    "plain text": (
        replace(HEALTHY, link=replace(HEALTHY.link, encrypted=False)), "tls", WARNING, "clear text",
    ),
    "unverified": (
        replace(HEALTHY, link=replace(HEALTHY.link, sslmode="require")), "tls", WARNING,
        "does not verify",
    ),
    "empty": (with_publication(tables=()), "publication-tables", WARNING, "contains no table"),
    "all tables": (
        with_publication(all_tables=True), "publication-all-tables", WARNING, "FOR ALL TABLES",
    ),
    "operations": (
        with_publication(update=False), "publication-operations", WARNING, "not published: update",
    ),
    "row filter": (
        with_publication(tables=(PublishedTable(table=ORDERS, row_filter="(id > 5)"),)),
        "publication-row-filter", WARNING, "(id > 5)",
    ),
    "columns": (
        with_publication(tables=(PublishedTable(table=ORDERS, columns=("id",)),)),
        "publication-column-list", WARNING, "published: id",
    ),
    "overlap": (
        replace(HEALTHY, overlaps=[("other", "public.orders")]), "publication-overlap", INFO,
        "publication other also contains: public.orders",
    ),
    "identity": (
        with_table(unidentified=['"public"."orders"']), "table-replica-identity", ERROR,
        "no replica identity",
    ),
    "another key": (
        with_table(replica_identity="i", identity=["total"]), "table-identity-not-primary-key",
        WARNING, "identified by (total), not by the primary key (id)",
    ),
    "generated": (with_table(stored=["total"]), "table-generated-column", INFO, ": total"),
    "generated key": (with_table(stored=["id"]), "table-generated-column", ERROR, "key column id"),
    "toast": (with_table(toasted=True), "table-toast-under-default-identity", INFO, "`unchanged`"),
    "unlogged": (replace(HEALTHY, unlogged=[ORDERS]), "table-unlogged", WARNING, "is unlogged"),
    "partitioned": (with_table(partitioned=True), "table-partition-root", INFO, "of the root"),
    "row security": (with_table(row_security=True), "table-row-security", WARNING, "policies"),
    "case": (with_table(columns=["id", "ID"]), "table-case-collision", WARNING, ": id, ID"),
    "money": (with_table(money=["total"]), "table-money", INFO, "lc_monetary: total"),
    "no slot": (replace(HEALTHY, slot=None), "slot-exists", ERROR, "does not exist"),
    "slot of a log": (
        replace(HEALTHY, slot=None, log_exists=True), "slot-exists", ERROR, "changes since its end",
    ),
    "taken over": (
        replace(HEALTHY, slot=None, log_exists=True, term=1, terms={3: replace(SLOT, name="s_e3")}),
        "slot-term", ERROR, "slot s_e3 exists: another machine has taken over the log, which is of "
        "term 1",
    ),
    "old slot": (
        replace(HEALTHY, term=1, terms={0: SLOT, 1: replace(SLOT, name="tailrace_e1")}),
        "slot-term", WARNING, "slot tailrace of term 0 still exists and retains WAL",
    ),
    "slot of the term": (
        replace(HEALTHY, slot=None, log_exists=True, term=2), "slot-exists", ERROR,
        "slot tailrace_e2 is missing",
    ),
    "plugin": (with_slot(plugin="wal2json"), "slot-usable", ERROR, "wal2json"),
    "two-phase": (with_slot(two_phase=True), "slot-usable", WARNING, "two-phase"),
    "active": (with_slot(active_pid=7), "slot-active", INFO, "in use by server process 7"),
    "unreserved": (
        with_slot(wal_status="unreserved"), "slot-wal-kept", ERROR, "the next checkpoint removes",
    ),
    "extended": (
        with_slot(wal_status="extended", kept_wal_bytes=3 << 20, safe_wal_bytes=1 << 20),
        "slot-wal-kept", WARNING, "keeps 3 MiB of WAL for the slot, 1 MiB left",
    ),
    "failover": (with_slot(failover=False), "failover-slot", INFO, "not marked for failover"),
    "writer": (
        replace(HEALTHY, transactions=[WRITER]), "open-transactions", WARNING, "pid 7 (app",
    ),
    "prepared": (
        replace(HEALTHY, transactions=[replace(WRITER, pid=None, gid="two")]),
        "prepared-transactions", WARNING, "'two'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_deviation_has_one_finding(name: str) -> None:
    facts, check, severity, words = CASES[name]
    (finding,) = problems(facts)
    assert (finding.check, finding.severity) == (check, severity)
    assert words in finding.finding


def test_findings_come_most_severe_first() -> None:
    facts = replace(
        with_table(money=["total"], selectable=False), settings=SETTINGS | {"wal_level": "minimal"}
    )
    assert [finding.severity for finding in problems(facts)] == [ERROR, WARNING, INFO]


def test_without_a_publication_its_checks_do_not_run() -> None:
    (finding,) = problems(replace(HEALTHY, publication=None))
    assert finding.check == "publication-exists"
    assert "cannot read changes older than" in finding.finding


def test_a_young_writer_is_no_problem() -> None:
    young = replace(WRITER, age=timedelta(minutes=1))
    assert problems(replace(HEALTHY, transactions=[young])) == []


def test_an_old_server_is_not_supported_and_has_no_failover() -> None:
    old, failover = problems(replace(HEALTHY, version=130_000))
    assert (old.check, old.severity) == ("server-version", ERROR)
    assert (failover.check, failover.severity) == ("failover-slot", INFO)


@pytest.mark.parametrize("effective", ["replica", "logical"])
def test_wal_level_replica_is_enough_from_postgres_19_on(effective: str) -> None:
    """The first logical slot raises the effective level."""
    facts = with_settings(wal_level="replica", effective_wal_level=effective)
    (newer,) = problems(replace(facts, version=190_000))
    assert (newer.check, newer.severity) == ("server-version", INFO)
