"""A database on each PostgreSQL that the cases are shown on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fix_postgres import Database


@pytest.fixture(
    params=[
        "database",
        pytest.param("database16", marks=pytest.mark.long),
        pytest.param("database15", marks=pytest.mark.long),
    ],
    ids=["pg18", "pg16", "pg15"],
)
def db(request: pytest.FixtureRequest) -> Database:
    """An empty database on PostgreSQL 18, then on 16 and 15."""
    database: Database = request.getfixturevalue(request.param)
    return database
