"""Stores that break, and what files hold, read without the sink's own code."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.sinks.file.store import Store


class DeadError(BaseException):
    """The process has died."""


class MortalStore:
    """A store of a process that dies at one of its operations: nothing works from then on.

    `dies` is called with the number of each operation and may raise DeadError, or do something
    else first: then the process only hangs.
    """

    def __init__(self, store: Store, dies: Callable[[int], None]) -> None:
        self._store = store
        self._dies = dies
        self._operations = 0
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        def operation(*args: Any) -> Any:
            if self._dead:
                if name == "close":
                    self._store.close()
                if name in ("discard", "close"):
                    return None
                raise DeadError
            if name in ("stage", "publish") and len(args[0]) > 1:
                # Each file is a step of its own.
                for each in args[0]:
                    operation([each])
                return None
            if name not in ("close", "discard"):
                self._operations += 1
                try:
                    self._dies(self._operations)
                except DeadError:
                    self._dead = True
                    raise
            return getattr(self._store, name)(*args)

        return operation


def queried(sql: str) -> list[Any]:
    """The rows of a query of DuckDB."""
    with duckdb.connect() as connection:
        return connection.execute(sql).fetchall()


def positions_in(root: Path) -> list[tuple[int, int]]:
    """The positions in all Parquet files with final names, in the order of folders and names."""
    found: list[tuple[int, int]] = []
    for path in sorted(root.rglob("*.parquet")):
        table = pq.read_table(io.BytesIO(path.read_bytes()))
        own = list(zip(table["lsn"].to_pylist(), table["ordinal"].to_pylist(), strict=True))
        assert own == sorted(own)
        found += own
    return found
