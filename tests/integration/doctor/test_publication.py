"""Checks of the publication."""

from __future__ import annotations

from tests.integration.doctor.shop import (
    ERROR,
    INFO,
    OK,
    WARNING,
    Shop,
)


def test_publication_exists(shop: Shop) -> None:
    assert shop.one("publication-exists").severity is OK
    missing = shop.one("publication-exists", publication="other")
    assert missing.severity is ERROR
    assert 'CREATE PUBLICATION "other"' in missing.fix
    shop.init()
    late = shop.one("publication-exists", publication="other")
    assert "cannot read changes older than a publication that is created now" in late.finding


def test_without_publication_tables_are_not_checked(shop: Shop) -> None:
    assert shop.findings("table-replica-identity", publication="other") == []
    assert shop.findings("publication-operations", publication="other") == []


def test_publication_tables(shop: Shop) -> None:
    assert shop.one("publication-tables").severity is OK
    shop.execute("CREATE PUBLICATION empty")
    assert shop.one("publication-tables", publication="empty").severity is WARNING


def test_publication_all_tables(shop: Shop) -> None:
    assert shop.one("publication-all-tables").severity is OK
    shop.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    assert shop.one("publication-all-tables", publication="everything").severity is WARNING


def test_publication_operations(shop: Shop) -> None:
    shop.execute("ALTER PUBLICATION shop SET (publish = 'insert, delete')")
    finding = shop.one("publication-operations")
    assert finding.severity is WARNING
    assert finding.finding.endswith("update, truncate")
    shop.fix(finding)
    assert shop.one("publication-operations").severity is OK


def test_publication_row_filter(either: Shop) -> None:
    either.execute("ALTER PUBLICATION shop SET TABLE orders WHERE (id > 5)")
    finding = either.one("publication-row-filter")
    assert finding.severity is WARNING
    assert finding.subject == "public.orders"
    assert "(id > 5)" in finding.finding
    either.fix(finding)
    assert either.one("publication-row-filter").severity is OK


def test_publication_column_list(either: Shop) -> None:
    either.execute("ALTER PUBLICATION shop SET TABLE orders (id)")
    finding = either.one("publication-column-list")
    assert finding.severity is WARNING
    assert finding.finding.endswith(": id")
    either.fix(finding)
    assert either.one("publication-column-list").severity is OK


def test_publication_overlap(shop: Shop) -> None:
    assert shop.one("publication-overlap").severity is OK
    shop.execute("CREATE PUBLICATION second FOR TABLE orders")
    finding = shop.one("publication-overlap")
    assert finding.severity is INFO
    assert finding.subject == "second"
    assert "public.orders" in finding.finding
