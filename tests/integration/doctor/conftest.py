"""Fixtures for the checks: the small database on each major version, and a role."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.doctor.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Shop:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database.execute("CREATE PUBLICATION shop FOR TABLE orders")
    return Shop(database, tmp_path / "log")


@pytest.fixture
def shop16(database16: Database, tmp_path: Path) -> Shop:
    database16.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database16.execute("CREATE PUBLICATION shop FOR TABLE orders")
    return Shop(database16, tmp_path / "log")


@pytest.fixture
def shop15(database15: Database, tmp_path: Path) -> Shop:
    database15.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database15.execute("CREATE PUBLICATION shop FOR TABLE orders")
    return Shop(database15, tmp_path / "log")


@pytest.fixture(params=["shop", "shop16", pytest.param("shop15", marks=pytest.mark.long)])
def either(request: pytest.FixtureRequest) -> Shop:
    found: Shop = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def role(shop: Shop) -> Iterator[str]:
    """A role that may only log in."""
    name = f"role_{shop.database.name}"
    shop.execute(f"CREATE ROLE {name} LOGIN")
    try:
        yield name
    finally:
        shop.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
