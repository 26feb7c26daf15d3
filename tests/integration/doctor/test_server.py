"""Checks of the server. What a shared server can not show is put into facts of a real one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.config import load
from tailrace.postgres.preflight import Severity, run
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


@pytest.mark.parametrize(
    ("version", "severity", "words"),
    [
        (130_021, ERROR, "not supported"),
        (140_018, WARNING, "14.18 can lose changes"),
        (150_013, WARNING, "15.13 can lose changes"),
        (160_009, WARNING, "16.9 can lose changes"),
        (170_005, WARNING, "17.5 can lose changes"),
        (140_019, OK, ""),
        (170_006, OK, ""),
        (180_000, OK, ""),
        (190_000, INFO, "newer than"),
    ],
)
def test_server_version(shop: Shop, version: int, severity: Severity, words: str) -> None:
    finding = judged(replace(shop.facts(), version=version), "server-version")
    assert finding.severity is severity
    assert words in finding.finding


def test_the_servers_at_hand_are_recent(either: Shop) -> None:
    assert either.one("server-version").severity is OK


def test_primary(shop: Shop) -> None:
    facts = shop.facts()
    assert judged(facts, "primary").severity is OK
    assert judged(replace(facts, standby=True), "primary").severity is WARNING
    old = replace(facts, standby=True, version=150_014)
    assert judged(old, "primary").severity is ERROR


@pytest.mark.parametrize(
    ("check", "setting", "value", "severity"),
    [
        ("wal-level", "wal_level", "replica", ERROR),
        ("wal-level", "wal_level", "logical", OK),
        ("max-slot-wal-keep-size", "max_slot_wal_keep_size", "-1", WARNING),
        ("max-slot-wal-keep-size", "max_slot_wal_keep_size", "100", WARNING),
        ("max-slot-wal-keep-size", "max_slot_wal_keep_size", "65536", OK),
        ("idle-slot-timeout", "idle_replication_slot_timeout", "0", OK),
        ("idle-slot-timeout", "idle_replication_slot_timeout", "3600", WARNING),
        ("idle-slot-timeout", "idle_replication_slot_timeout", "864000", INFO),
        ("free-slots", "max_replication_slots", "0", ERROR),
        ("free-slots", "max_replication_slots", "100000", OK),
        ("free-senders", "max_wal_senders", "0", ERROR),
        ("free-senders", "max_wal_senders", "100000", OK),
        ("wal-sender-timeout", "wal_sender_timeout", "0", INFO),
        ("wal-sender-timeout", "wal_sender_timeout", "1000", WARNING),
        ("wal-sender-timeout", "wal_sender_timeout", "60000", OK),
    ],
)
def test_server_settings(
    shop: Shop, check: str, setting: str, value: str, severity: Severity
) -> None:
    facts = shop.facts()
    assert setting in facts.settings
    finding = judged(with_settings(facts, **{setting: value}), check)
    assert finding.severity is severity
    assert bool(finding.fix) is (severity is not OK)


def test_settings_of_a_real_server(tmp_path: Path) -> None:
    settings = {
        "max_slot_wal_keep_size": "100MB",
        "idle_replication_slot_timeout": "1h",
        "max_replication_slots": "1",
        "max_wal_senders": "0",
        "wal_sender_timeout": "1s",
        "max_prepared_transactions": "2",
    }
    with EmbeddedPostgres(settings=settings) as server, server.connect() as connection:
        connection.execute("SELECT pg_create_physical_replication_slot('other')")
        connection.execute("CREATE TABLE t (); BEGIN; INSERT INTO t DEFAULT VALUES")
        connection.execute("PREPARE TRANSACTION 'the gid'")
        findings = run(connection, load(None, {"log": {"path": tmp_path}}))
        severities = {finding.check: finding.severity for finding in findings}
        assert severities["max-slot-wal-keep-size"] is WARNING
        assert severities["idle-slot-timeout"] is WARNING
        assert severities["free-slots"] is ERROR
        assert severities["free-senders"] is ERROR
        assert severities["wal-sender-timeout"] is WARNING
        (prepared,) = named("prepared-transactions", findings)
        assert prepared.severity is WARNING
        assert prepared.subject == "the gid"
        assert prepared.fix.startswith("COMMIT PREPARED 'the gid';")
        connection.execute(prepared.fix.split(" -- ")[0].encode())
        (gone,) = named("prepared-transactions", run(connection, load()))
        assert gone.severity is OK


@pytest.mark.parametrize(("encoding", "severity"), [("SQL_ASCII", WARNING), ("LATIN1", INFO)])
def test_encoding(shop: Shop, encoding: str, severity: Severity) -> None:
    assert shop.one("encoding").severity is OK
    name = f"{shop.database.name}_{encoding.lower()}"
    shop.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
    try:
        finding = shop.one("encoding", dsn=shop.database.server.dsn(name))
        assert finding.severity is severity
        assert encoding in finding.finding
    finally:
        shop.database.server.drop_database(name)
