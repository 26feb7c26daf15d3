"""Checks of the slot and of open transactions."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tailrace.config import load
from tailrace.postgres.bootstrap import initialise
from tailrace.postgres.names import TableName
from tailrace.postgres.preflight import Severity, run
from tailrace.postgres.preflight import slot as slot_checks
from tailrace.testing import EmbeddedPostgres
from tests.integration.doctor.shop import (
    ERROR,
    INFO,
    OK,
    WARNING,
    Shop,
    judged,
    named,
    with_settings,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.testing.postgres import Major


def test_slot_exists(shop: Shop) -> None:
    missing = shop.one("slot-exists")
    assert missing.severity is ERROR
    assert "pg_create_logical_replication_slot" in missing.fix
    shop.log.mkdir()
    (shop.log / "0000000001-0000000000000000.seg").touch()
    lost = shop.one("slot-exists")
    assert lost.severity is ERROR
    assert "changes since its end are lost" in lost.finding
    assert shop.findings("slot-usable") == []
    shop.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
    assert shop.one("slot-exists").severity is OK
    assert shop.one("slot-usable").severity is OK


def test_slot_usable_of_another_database(shop: Shop, postgres: EmbeddedPostgres) -> None:
    other = postgres.create_database("other")
    try:
        with postgres.connect(other) as connection:
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (shop.database.name,)
            )
        finding = shop.one("slot-usable")
        assert finding.severity is ERROR
        assert f"belongs to database {other}" in finding.finding
    finally:
        postgres.drop_database(other)


def test_slot_usable_of_another_kind(shop: Shop) -> None:
    name = shop.database.name
    shop.execute(f"SELECT pg_create_physical_replication_slot('{name}')")
    try:
        assert "physical" in shop.one("slot-usable").finding
    finally:
        shop.execute(f"SELECT pg_drop_replication_slot('{name}')")


def test_slot_usable_for_two_phases(shop: Shop) -> None:
    shop.execute(
        "SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput', false, true)"
    )
    finding = shop.one("slot-usable")
    assert finding.severity is WARNING
    assert "two-phase" in finding.finding


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plugin": "wal2json"}, "wal2json"),
        ({"temporary": True}, "temporary"),
        ({"wal_status": "lost"}, "its WAL was removed"),
        ({"invalidation_reason": "idle_timeout"}, "idle_timeout"),
    ],
)
def test_slot_usable_reasons(shop: Shop, changes: dict[str, Any], words: str) -> None:
    shop.init()
    facts = shop.facts()
    assert facts.slot is not None
    finding = judged(replace(facts, slot=replace(facts.slot, **changes)), "slot-usable")
    assert finding.severity is ERROR
    assert words in finding.finding


@pytest.mark.parametrize("major", [18, 16, pytest.param(15, marks=pytest.mark.long)])
def test_a_slot_that_was_really_lost(major: Major, tmp_path: Path) -> None:
    if not EmbeddedPostgres.installed(major):
        pytest.skip(f"PostgreSQL {major} is not installed")
    settings = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    config = load(None, {"log": {"path": tmp_path / "log"}})
    server = EmbeddedPostgres(major, settings=settings)
    with server, server.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        initialise(connection, config, tables=[TableName("public", "t")])
        for _ in range(4):
            connection.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 99))")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")
        (finding,) = named("slot-usable", run(connection, config))
        assert finding.severity is ERROR
        assert "is lost" in finding.finding
        assert named("slot-wal-kept", run(connection, config))[0].severity is OK


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({}, OK),
        ({"wal_status": "extended", "safe_wal_bytes": 2**20}, WARNING),
        ({"kept_wal_bytes": 11 * 2**30}, WARNING),
        ({"wal_status": "unreserved"}, ERROR),
    ],
)
def test_slot_wal_kept(shop: Shop, changes: dict[str, Any], severity: Severity) -> None:
    shop.init()
    facts = shop.facts()
    assert facts.slot is not None
    finding = judged(replace(facts, slot=replace(facts.slot, **changes)), "slot-wal-kept")
    assert finding.severity is severity


def test_slot_active(shop: Shop) -> None:
    shop.init()
    facts = shop.facts()
    assert facts.slot is not None
    assert judged(facts, "slot-active").severity is OK
    busy = judged(replace(facts, slot=replace(facts.slot, active_pid=4711)), "slot-active")
    assert busy.severity is INFO
    assert "4711" in busy.finding
    full = with_settings(facts, max_wal_senders="0")
    assert judged(full, "free-senders").severity is ERROR
    ours = replace(full, slot=replace(facts.slot, active_pid=4711))
    assert judged(ours, "free-senders").severity is OK


def test_failover_slot(shop: Shop, shop16: Shop) -> None:
    assert "does not survive a failover" in shop16.one("failover-slot").finding
    shop.init()
    facts = shop.facts()
    assert facts.slot is not None
    assert "synchronized_standby_slots is empty" in judged(facts, "failover-slot").finding
    ready = with_settings(facts, synchronized_standby_slots="standby")
    assert judged(ready, "failover-slot").severity is OK
    plain = replace(facts, slot=replace(facts.slot, failover=False))
    assert "not marked for failover" in judged(plain, "failover-slot").finding


def test_the_failover_fix_works(shop: Shop) -> None:
    shop.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
    finding = shop.one("failover-slot")
    assert "not marked for failover" in finding.finding
    command = finding.fix.partition(": ")[2]
    dsn = f"{shop.database.dsn} replication=database"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(command.encode())
    assert "synchronized_standby_slots" in shop.one("failover-slot").finding


def test_open_transactions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(shop.database.dsn) as writer:
        writer.execute("INSERT INTO orders VALUES (1, 'x')")
        subject = f"pid {writer.info.backend_pid}"
        young = [finding.subject for finding in shop.findings("open-transactions")]
        assert subject not in young
        monkeypatch.setattr(slot_checks, "OLD_TRANSACTION", timedelta(0))
        old = {finding.subject: finding for finding in shop.findings("open-transactions")}
        assert old[subject].severity is WARNING
        assert old[subject].fix == f"SELECT pg_terminate_backend({writer.info.backend_pid});"
        writer.rollback()
    assert subject not in [finding.subject for finding in shop.findings("open-transactions")]
