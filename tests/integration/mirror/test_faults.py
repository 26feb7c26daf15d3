"""Mirrors as processes, killed at random under load, with NATS killed as well."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Self

import psycopg
import pytest
from typing_extensions import override

from tailrace.errors import SinkUnreachableError
from tests.command import Service
from tests.integration.mirror.system import target_url
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fix_postgres import Database
    from tests.integration.client.system import System

ACCOUNTS = 400
TOTAL = ACCOUNTS * 100
KILLS = 6
SUM = "SELECT sum(balance) FROM accounts"
ROWS = "SELECT id, balance, note FROM accounts ORDER BY id"


class Bank:
    """Threads that transfer money between accounts; the sum never changes."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database = database
        self._stop = threading.Event()
        self.done = 0
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(seed + number),))
            for number in range(2)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, randomness: random.Random) -> None:
        with self._database.connect() as connection:
            while not self._stop.is_set():
                with contextlib.suppress(psycopg.Error), connection.transaction():
                    for _ in range(randomness.randint(1, 5)):
                        self._transfer(connection, randomness)
                    self.done += 1
                time.sleep(randomness.choice((0, 0.002, 0.02)))

    def _transfer(self, connection: psycopg.Connection, randomness: random.Random) -> None:
        one, other = randomness.randrange(ACCOUNTS), randomness.randrange(ACCOUNTS)
        amount = randomness.randrange(50)
        add = "UPDATE accounts SET balance = balance + %s WHERE id = %s"
        match randomness.randrange(8):
            case 0:
                # An account gets another id and keeps its large note.
                new = randomness.randrange(ACCOUNTS, 10 * ACCOUNTS)
                connection.execute("UPDATE accounts SET id = %s WHERE id = %s", [new, one])
                connection.execute("UPDATE accounts SET id = %s WHERE id = %s", [one, new])
            case 1:
                row = connection.execute(
                    "DELETE FROM accounts WHERE id = %s RETURNING balance, note", [one]
                ).fetchone()
                if row is not None:
                    connection.execute("INSERT INTO accounts VALUES (%s, %s, %s)", [one, *row])
            case _:
                added = connection.execute(add, [amount, one]).rowcount
                removed = connection.execute(add, [-amount, other]).rowcount
                if added != removed:
                    raise psycopg.DataError("one of them is not there")

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Reader:
    """Queries a target continuously, and records every sum."""

    def __init__(self, query: Callable[[str], list[tuple[object, ...]]]) -> None:
        self.query = query
        self.sums: list[object] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.003):
            # The table does not exist yet, or is locked for a moment.
            with contextlib.suppress(sqlite3.OperationalError, psycopg.errors.UndefinedTable):
                self.sums += [row[0] for row in self.query(SUM)]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Process(Service):
    """`tailrace mirror`, restarted after it has ended, as by a service manager."""

    def __init__(self, url: str, to: str, folder: Path, file: str) -> None:
        mirror = ("mirror", "--from", url, "--table", "accounts", "--to", to)
        super().__init__(*mirror, folder=folder, file=file)

    @override
    def start(self) -> Self:
        self._output_start = len(self.output)
        return super().start()

    def _start_if_ended(self) -> None:
        if not self.alive:
            # NATS was down at its start, which is an error.
            assert self.exit_code == SinkUnreachableError.exit_code, self.output
            self.start()

    def restart(self) -> None:
        """Kill the running process, and start another."""
        self._start_if_ended()
        self.kill()
        self.start()

    def follows(self) -> bool:
        """Whether the running process follows changes."""
        self._start_if_ended()
        return "following" in self.output[self._output_start :]


@pytest.mark.long
def test_no_change_is_lost_duplicated_or_partial(
    system: System, copy: Database, tmp_path: Path, seed: int
) -> None:
    """GIVEN mirrors in two targets, transactions published atomically, and transfers WHEN mirrors
    and NATS are killed at random THEN no reader of a target ever sees another sum, and in the end
    source and targets are equal, row by row."""
    randomness = random.Random(seed)
    system.pipeline["sink"] |= {"atomic": "transaction", "stream": {"atomic": True}}
    system.database.execute(f"""
        CREATE TABLE accounts (id int PRIMARY KEY, balance int, note text);
        ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL;
        INSERT INTO accounts SELECT g, 100, repeat('n', CASE WHEN g % 9 = 0 THEN 3000 ELSE 3 END)
        FROM generate_series(0, {ACCOUNTS - 1}) g
    """)
    system.start()
    path = tmp_path / "copy.db"
    light = sqlite3.connect(path, check_same_thread=False, timeout=60)
    heavy = copy.connect()
    readers = [
        Reader(lambda sql: light.execute(sql).fetchall()),
        Reader(lambda sql: heavy.execute(sql.encode()).fetchall()),
    ]
    bank = Bank(system.database, seed)
    mirrors = [
        Process(system.server.url, f"sqlite:///{path}", tmp_path, "light.log").start(),
        Process(system.server.url, target_url(copy), tmp_path, "heavy.log").start(),
    ]
    try:
        for number in range(KILLS):
            time.sleep(randomness.uniform(0.2, 3.0))
            if number % 3 == 2:
                system.server.kill()
                time.sleep(randomness.uniform(0, 0.5))
                system.server.start()
                continue
            for process in mirrors:
                process.restart()
        for process in mirrors:
            wait_for(lambda process=process: process.follows(), "the mirrors follow")  # type: ignore[misc]
        bank.stop()
        expected = system.database.query(ROWS)
        assert bank.done > 50
        assert system.database.query(SUM) == [(TOTAL,)]
        for reader in readers:
            wait_for(lambda reader=reader: reader.query(ROWS) == expected, "all rows")  # type: ignore[misc]
        assert [process.stop() for process in mirrors] == [0, 0]
    finally:
        bank.stop()
        for reader in readers:
            reader.stop()
        for process in mirrors:
            process.kill()
            print(process.output[-3000:])
        light.close()
        heavy.close()
    for reader in readers:
        assert reader.sums
        assert set(reader.sums) == {TOTAL}
