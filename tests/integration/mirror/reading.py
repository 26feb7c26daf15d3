"""The rows of a target, in the form of the source's rows."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb

from tests.integration.mirror.system import target_url
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A target of one kind: its address, and how to query it."""

    url: str
    kind: str
    path: Path | None = None
    database: Database | None = None

    def rows(self, select: str) -> Rows:
        """The rows of a query that all databases understand."""
        if self.database is not None:
            return self.database.query(select)
        if self.kind == "sqlite":
            with contextlib.closing(
                sqlite3.connect(str(self.path), isolation_level=None, timeout=LONG_S)
            ) as connection:
                return connection.execute(select).fetchall()
        with _opened(str(self.path)) as connection:
            rows: Rows = connection.execute(select).fetchall()
            return rows

    def name(self, schema: str, table: str) -> str:
        """The name of a table in this target."""
        name = table.replace('"', '""')
        if self.kind == "sqlite":
            prefix = "" if schema == "public" else f"{schema}."
            return f'"{prefix}{name}"'
        schema = "main" if self.kind == "duckdb" and schema == "public" else schema
        return f'"{schema}"."{name}"'


def _opened(path: str) -> duckdb.DuckDBPyConnection:
    """A connection to a file that another thread may be about to close."""
    deadline = time.monotonic() + LONG_S
    while True:
        try:
            return duckdb.connect(path)
        except duckdb.OperationalError as error:
            in_use = "lock" in str(error) or "handle conflict" in str(error)
            if not in_use or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def places(folder: Path, copy: Database) -> list[Place]:
    """One target of each kind."""
    return [
        Place(url=f"sqlite:///{folder}/copy.sqlite", kind="sqlite", path=folder / "copy.sqlite"),
        Place(url=f"duckdb:///{folder}/copy.duckdb", kind="duckdb", path=folder / "copy.duckdb"),
        Place(url=target_url(copy), kind="postgresql", database=copy),
    ]
