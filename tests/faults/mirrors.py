"""Mirrors as processes that are killed and restarted, and a reader that queries them."""

from __future__ import annotations

import json
import sqlite3
import threading
from abc import ABC, abstractmethod
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
from typing_extensions import override

from tailrace.testing.postgres import SUPERUSER
from tests.command import Service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database

Rows = list[dict[str, Any]]


class Copy(ABC):
    """`tailrace mirror` of some tables, and its target."""

    def __init__(self, url: str, tables: list[str], folder: Path, name: str) -> None:
        self._url = url
        self._tables = tables
        self._folder = folder
        self._name = name
        self._process: Service | None = None
        self._said = 0

    @property
    @abstractmethod
    def target(self) -> str:
        """The URL of the target."""

    @abstractmethod
    def rows(self, table: str, key: tuple[str, ...]) -> Rows:
        """The rows of a table in the copy, ordered by key."""

    @abstractmethod
    def total(self) -> int | None:
        """The sum of all accounts; None before the copy exists."""

    def start(self, *, fresh: bool = False) -> None:
        self._said = len(self.output) if self._process is not None else 0
        tables = [argument for table in self._tables for argument in ("--table", table)]
        self._process = Service(
            *("mirror", "--from", self._url, *tables, "--to", self.target),
            *(["--fresh"] if fresh else []),
            folder=self._folder,
            file=f"{self._name}.log",
        ).start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        assert self._process is not None
        return self._process.exit_code

    @property
    def output(self) -> str:
        """All output so far."""
        assert self._process is not None
        return self._process.output

    @property
    def refuses(self) -> bool:
        """Whether the process has found another history for one of its tables."""
        return "stopped: DIVERGED" in self.output[self._said :]

    def check(self) -> None:
        """Fail if the process has ended."""
        assert self._process is not None
        assert self._process.alive, self._process.output[-3000:]


class SqliteCopy(Copy):
    """A copy in a file."""

    def __init__(self, url: str, tables: list[str], folder: Path) -> None:
        super().__init__(url, tables, folder, "sqlite")
        self._file = folder / "copy.db"

    @property
    @override
    def target(self) -> str:
        return f"sqlite:///{self._file}"

    @override
    def rows(self, table: str, key: tuple[str, ...]) -> Rows:
        with closing(sqlite3.connect(self._file, timeout=30)) as connection:
            connection.row_factory = sqlite3.Row
            rows = connection.execute(f"SELECT * FROM {table} ORDER BY {', '.join(key)}")
            return [dict(row) for row in rows]

    @override
    def total(self) -> int | None:
        if not self._file.exists():
            return None
        try:
            with closing(sqlite3.connect(self._file, timeout=30)) as connection:
                row: tuple[int | None] = connection.execute(
                    "SELECT sum(balance) FROM bank"
                ).fetchone()
                return row[0]
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return None


class PostgresCopy(Copy):
    """A copy in its own database."""

    def __init__(self, url: str, tables: list[str], folder: Path, database: Database) -> None:
        super().__init__(url, tables, folder, "postgres")
        self._database = database

    @property
    @override
    def target(self) -> str:
        server = self._database.server
        return f"postgresql://{SUPERUSER}@127.0.0.1:{server.port}/{self._database.name}"

    @override
    def rows(self, table: str, key: tuple[str, ...]) -> Rows:
        sql = f"SELECT row_to_json(t)::text FROM {table} t ORDER BY {', '.join(key)}"
        return [json.loads(row) for (row,) in self._database.query(sql)]

    @override
    def total(self) -> int | None:
        try:
            total: int | None = self._database.query("SELECT sum(balance)::int8 FROM bank")[0][0]
        except psycopg.errors.UndefinedTable:
            return None
        return total


class Auditor:
    """Queries the sum of all accounts of copies continuously: it must never change."""

    def __init__(self, copies: list[Copy], total: int) -> None:
        self._copies = copies
        self._total = total
        self._stop = threading.Event()
        self._errors: list[str] = []
        self.audits = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        complete: set[Copy] = set()
        while not self._stop.wait(0.02):
            for copy in self._copies:
                total = copy.total()
                if total == self._total:
                    complete.add(copy)
                    self.audits += 1
                elif total is not None or copy in complete:
                    self._errors.append(f"{copy.target}: {total} instead of {self._total}")

    def check(self) -> None:
        assert not self._errors, self._errors[:5]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
