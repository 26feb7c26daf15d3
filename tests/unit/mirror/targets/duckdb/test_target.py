"""The file of a DuckDB target is opened and closed by the mirrors of several tables at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import duckdb
import pytest

from tailrace.client.names import Table
from tailrace.errors import ConfigError
from tailrace.mirror.targets.duckdb import target as module
from tailrace.mirror.targets.duckdb.target import Duckdb

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_that_another_thread_closes_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conflict = 'Unique file handle conflict: Cannot attach "copy"'
    errors: list[Exception] = [duckdb.OperationalError(conflict), duckdb.IOException("a lock")]
    connect = duckdb.connect

    def connected(path: str) -> duckdb.DuckDBPyConnection:
        if errors:
            raise errors.pop()
        return connect(path)

    monkeypatch.setattr(duckdb, "connect", connected)
    target = Duckdb(tmp_path / "copy.duckdb", Table("public", "users"))
    assert target.open() is None
    target.close()
    assert not errors


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    target = Duckdb(tmp_path / "missing" / "copy.duckdb", Table("public", "users"))
    with pytest.raises(ConfigError, match="cannot open"):
        target.open()


def test_several_tables_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LOCKED_S", 600.0)

    def use(number: int) -> None:
        target = Duckdb(tmp_path / "copy.duckdb", Table("public", f"t{number}"))
        for _ in range(20):
            assert target.open() is None
            target.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
