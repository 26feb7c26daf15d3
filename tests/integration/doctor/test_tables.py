"""Checks of each published table; the fixes are run, and PostgreSQL agrees."""

from __future__ import annotations

import psycopg
import pytest

from tests.integration.doctor.shop import (
    ERROR,
    INFO,
    OK,
    WARNING,
    Shop,
)


@pytest.mark.parametrize(
    "break_it",
    [
        "ALTER TABLE orders REPLICA IDENTITY NOTHING",
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
        "ALTER TABLE orders ALTER note SET NOT NULL; CREATE UNIQUE INDEX u ON orders (note);"
        "ALTER TABLE orders REPLICA IDENTITY USING INDEX u; DROP INDEX u",
    ],
)
def test_table_replica_identity(either: Shop, break_it: str) -> None:
    assert either.one("table-replica-identity").severity is OK
    either.execute(break_it)
    finding = either.one("table-replica-identity")
    assert finding.severity is ERROR
    assert finding.subject == "public.orders"
    either.execute("INSERT INTO orders VALUES (1, 'x')")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        either.execute("UPDATE orders SET note = 'y'")
    either.execute(finding.fix.split("-- or: ")[1])
    either.execute("UPDATE orders SET note = 'y'")
    assert either.one("table-replica-identity").severity is OK


def test_inserts_alone_need_no_identity(shop: Shop) -> None:
    shop.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    shop.execute("ALTER PUBLICATION shop SET (publish = 'insert')")
    assert shop.one("table-replica-identity").severity is OK


def test_table_primary_key(shop: Shop) -> None:
    assert shop.one("table-primary-key").severity is OK
    shop.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    shop.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    assert shop.one("table-primary-key").severity is INFO


def test_table_identity_not_primary_key(shop: Shop) -> None:
    assert shop.one("table-identity-not-primary-key").severity is OK
    shop.execute("ALTER TABLE orders ALTER note SET NOT NULL")
    shop.execute("CREATE UNIQUE INDEX by_note ON orders (note)")
    shop.execute("ALTER TABLE orders REPLICA IDENTITY USING INDEX by_note")
    finding = shop.one("table-identity-not-primary-key")
    assert finding.severity is WARNING
    assert "(note), not by the primary key (id)" in finding.finding
    shop.fix(finding)
    assert shop.one("table-identity-not-primary-key").severity is OK


def test_table_generated_column(shop: Shop) -> None:
    assert shop.one("table-generated-column").severity is OK
    shop.execute("ALTER TABLE orders ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    finding = shop.one("table-generated-column")
    assert finding.severity is INFO
    assert finding.finding.endswith(": twice")
    shop.fix(finding)
    assert shop.one("table-generated-column").severity is OK
    shop.execute("ALTER TABLE orders ADD thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL")
    assert shop.one("table-generated-column").finding.endswith(": thrice")


def test_table_generated_column_in_a_column_list(shop: Shop) -> None:
    shop.execute("ALTER TABLE orders ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    shop.execute("ALTER PUBLICATION shop SET TABLE orders (id, twice)")
    assert shop.one("table-generated-column").severity is OK


def test_table_generated_column_on_16(shop16: Shop) -> None:
    shop16.execute("ALTER TABLE orders ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    finding = shop16.one("table-generated-column")
    assert finding.severity is INFO
    assert "Upgrade to PostgreSQL 18" in finding.fix


def test_a_generated_key_is_an_error(either: Shop) -> None:
    either.execute("CREATE TABLE g (a int, s int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY)")
    either.execute("ALTER PUBLICATION shop ADD TABLE g")
    finding = either.one("table-generated-column")
    assert finding.severity is ERROR
    assert finding.subject == "public.g"


def test_table_toast_under_default_identity(either: Shop) -> None:
    check = "table-toast-under-default-identity"
    either.execute("INSERT INTO orders VALUES (1, 'short')")
    assert either.one(check).severity is OK
    either.execute("ALTER TABLE orders ALTER note SET STORAGE EXTERNAL")
    either.execute("INSERT INTO orders VALUES (2, repeat('z', 9000))")
    finding = either.one(check)
    assert finding.severity is INFO
    assert finding.subject == "public.orders"
    either.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    assert either.one(check).severity is OK


def test_table_unlogged(shop: Shop) -> None:
    shop.execute("CREATE UNLOGGED TABLE quick (id int PRIMARY KEY)")
    assert shop.one("table-unlogged").severity is OK
    shop.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    finding = shop.one("table-unlogged", publication="everything")
    assert finding.severity is WARNING
    assert finding.subject == "public.quick"
    shop.fix(finding)
    assert shop.one("table-unlogged", publication="everything").severity is OK


def test_table_partition_root(either: Shop) -> None:
    assert either.one("table-partition-root").severity is OK
    either.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id)")
    either.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
    either.execute("ALTER PUBLICATION shop ADD TABLE p")
    leaves = either.one("table-partition-root")
    assert leaves.severity is WARNING
    assert "public.p1" in leaves.finding
    either.fix(leaves)
    root = either.one("table-partition-root")
    assert root.severity is INFO
    assert root.subject == "public.p"


def test_table_row_security(shop: Shop, role: str) -> None:
    dsn = shop.database.server.dsn(shop.database.name, user=role)
    assert shop.one("table-row-security", dsn=dsn).severity is OK
    shop.execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    finding = shop.one("table-row-security", dsn=dsn)
    assert finding.severity is WARNING
    assert shop.one("table-row-security").severity is OK
    shop.fix(finding)
    assert shop.one("table-row-security", dsn=dsn).severity is OK


def test_table_case_collision(shop: Shop) -> None:
    assert shop.one("table-case-collision").severity is OK
    shop.execute('ALTER TABLE orders ADD "ID" int')
    shop.execute('CREATE TABLE "Orders" (id int PRIMARY KEY)')
    shop.execute('ALTER PUBLICATION shop ADD TABLE "Orders"')
    columns, tables = shop.findings("table-case-collision")
    assert columns.severity is tables.severity is WARNING
    assert columns.finding.endswith(": id, ID")
    assert tables.finding.endswith(": public.Orders, public.orders")


def test_table_money(shop: Shop) -> None:
    assert shop.one("table-money").severity is OK
    shop.execute('ALTER TABLE orders ADD "Price" money')
    finding = shop.one("table-money")
    assert finding.severity is INFO
    shop.fix(finding)
    assert shop.one("table-money").severity is OK
