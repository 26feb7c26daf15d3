"""Checks of the role and of the connection."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.postgres.connection import connect
from tailrace.postgres.preflight.facts import Link
from tests.integration.doctor.shop import (
    ERROR,
    INFO,
    OK,
    WARNING,
    Shop,
    judged,
)

if TYPE_CHECKING:
    from tailrace.postgres.preflight import Severity


def test_role_replication(shop: Shop, role: str) -> None:
    dsn = shop.database.server.dsn(shop.database.name, user=role)
    finding = shop.one("role-replication", dsn=dsn)
    assert finding.severity is ERROR
    assert role in finding.finding
    shop.fix(finding)
    assert shop.one("role-replication", dsn=dsn).severity is OK


def test_role_replication_by_membership(shop: Shop, role: str) -> None:
    shop.execute(f"CREATE ROLE rds_replication; GRANT rds_replication TO {role}")
    try:
        dsn = shop.database.server.dsn(shop.database.name, user=role)
        assert shop.one("role-replication", dsn=dsn).severity is OK
    finally:
        shop.execute("DROP ROLE rds_replication")


def test_role_superuser(shop: Shop, role: str) -> None:
    assert shop.one("role-superuser").severity is WARNING
    dsn = shop.database.server.dsn(shop.database.name, user=role)
    assert shop.one("role-superuser", dsn=dsn).severity is OK


def test_role_select(shop: Shop, role: str) -> None:
    shop.execute('CREATE SCHEMA "S"; CREATE TABLE "S"."T" (id int PRIMARY KEY)')
    shop.execute('ALTER PUBLICATION shop ADD TABLE "S"."T"')
    dsn = shop.database.server.dsn(shop.database.name, user=role)
    first, second = shop.findings("role-select", dsn=dsn)
    assert {first.subject, second.subject} == {"public.orders", "S.T"}
    assert first.severity is second.severity is WARNING
    shop.fix(first)
    shop.fix(second)
    assert shop.one("role-select", dsn=dsn).severity is OK


def test_role_activity(shop: Shop, role: str) -> None:
    dsn = shop.database.server.dsn(shop.database.name, user=role)
    finding = shop.one("role-activity", dsn=dsn)
    assert finding.severity is INFO
    shop.fix(finding)
    assert shop.one("role-activity", dsn=dsn).severity is OK


def test_role_settings(shop: Shop, role: str) -> None:
    name = shop.database.name
    dsn = shop.database.server.dsn(name, user=role)
    assert shop.one("role-settings", dsn=dsn).severity is OK
    shop.execute(f"ALTER ROLE {role} SET datestyle = 'German'")
    pinned = shop.one("role-settings", dsn=dsn)
    assert pinned.severity is INFO
    assert "not affected" in pinned.finding
    with connect(dsn) as connection:
        assert connection.execute("SELECT '2024-02-03'::date::text").fetchone() == ("2024-02-03",)
    shop.execute(f"ALTER ROLE {role} RESET datestyle")
    for command in (
        f"ALTER ROLE {role} SET statement_timeout = '10min'",
        f"ALTER DATABASE {name} SET statement_timeout = '10min'",
        f"ALTER ROLE {role} IN DATABASE {name} SET statement_timeout = '10min'",
    ):
        shop.execute(command)
        cut = shop.one("role-settings", dsn=dsn)
        assert cut.severity is WARNING
        shop.fix(cut)
        shop.execute(f"ALTER DATABASE {name} RESET statement_timeout")
        assert shop.one("role-settings", dsn=dsn).severity is OK


@pytest.mark.parametrize(
    ("link", "severity"),
    [
        (Link(local=True, loopback=False, encrypted=False, sslmode="prefer"), OK),
        (Link(local=False, loopback=True, encrypted=False, sslmode="prefer"), INFO),
        (Link(local=False, loopback=False, encrypted=False, sslmode="prefer"), WARNING),
        (Link(local=False, loopback=False, encrypted=True, sslmode="require"), WARNING),
        (Link(local=False, loopback=True, encrypted=True, sslmode="require"), INFO),
        (Link(local=False, loopback=False, encrypted=True, sslmode="verify-full"), OK),
    ],
)
def test_tls(shop: Shop, link: Link, severity: Severity) -> None:
    assert judged(replace(shop.facts(), link=link), "tls").severity is severity


def test_tls_of_real_lines(shop: Shop) -> None:
    assert shop.one("tls").severity is INFO
    assert shop.one("tls", dsn=shop.database.socket_dsn).severity is OK
