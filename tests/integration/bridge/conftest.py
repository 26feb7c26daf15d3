"""Settings for the bridge, with one database per test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace import config

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database


@pytest.fixture
def settings(tmp_path: Path, database: Database) -> config.Config:
    source = {"dsn": database.socket_dsn, "slot": database.name[-63:], "publication": "my_pub"}
    return config.load(None, {"source": source, "log": {"path": tmp_path / "log"}})
