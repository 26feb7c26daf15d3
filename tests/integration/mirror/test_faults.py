"""Mirrors as processes of their own, killed at random under load, with NATS killed as well."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from tailrace.errors import SinkUnreachableError
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
    """Threads that move money about; whatever they do, the sum stays the same."""

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

    def _work(self, luck: random.Random) -> None:
        with self._database.connect() as connection:
            while not self._stop.is_set():
                with contextlib.suppress(psycopg.Error), connection.transaction():
                    for _ in range(luck.randint(1, 5)):
                        self._transfer(connection, luck)
                    self.done += 1
                time.sleep(luck.choice((0, 0.002, 0.02)))

    def _transfer(self, connection: psycopg.Connection, luck: random.Random) -> None:
        one, other = luck.randrange(ACCOUNTS), luck.randrange(ACCOUNTS)
        amount = luck.randrange(50)
        add = "UPDATE accounts SET balance = balance + %s WHERE id = %s"
        match luck.randrange(8):
            case 0:
                # An account gets another number, and its large note stays with it.
                new = luck.randrange(ACCOUNTS, 10 * ACCOUNTS)
                connection.execute("UPDATE accounts SET id = %s WHERE id = %s", [new, one])
                connection.execute("UPDATE accounts SET id = %s WHERE id = %s", [one, new])
            case 1:
                row = connection.execute(
                    "DELETE FROM accounts WHERE id = %s RETURNING balance, note", [one]
                ).fetchone()
                if row is not None:
                    connection.execute("INSERT INTO accounts VALUES (%s, %s, %s)", [one, *row])
            case _:
                found = connection.execute(add, [amount, one]).rowcount
                gone = connection.execute(add, [-amount, other]).rowcount
                if found != gone:
                    raise psycopg.DataError("one of them is not there")

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Reader:
    """Looks at a target all the time, and notes every sum that it sees."""

    def __init__(self, look: Callable[[str], list[tuple[object, ...]]]) -> None:
        self.look = look
        self.sums: list[object] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.003):
            # Not there yet, or locked for a moment.
            with contextlib.suppress(sqlite3.OperationalError, psycopg.errors.UndefinedTable):
                self.sums += [row[0] for row in self.look(SUM)]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Process:
    """`tailrace mirror`, started again whenever it has ended, as a service manager does."""

    def __init__(self, url: str, to: str, log: Path) -> None:
        self._command = [
            *(sys.executable, "-m", "tailrace.cli", "mirror", "--from", url),
            *("--table", "accounts", "--to", to),
        ]
        self._log = log
        self.start()

    def start(self) -> None:
        self._began = len(self._log.read_text()) if self._log.exists() else 0
        with self._log.open("ab") as said:
            self.process = subprocess.Popen(self._command, stdout=said, stderr=said)

    def _tend(self) -> None:
        if (code := self.process.poll()) is not None:
            # NATS was away when it started: that is said at once.
            assert code == SinkUnreachableError.exit_code, self._log.read_text()
            self.start()

    def kill(self) -> None:
        self._tend()
        self.process.kill()
        self.process.wait()

    def follows(self) -> bool:
        """Whether the one that runs has come that far."""
        self._tend()
        return "following" in self._log.read_text()[self._began :]

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@pytest.mark.long
def test_nothing_is_lost_doubled_or_torn(
    system: System, copy: Database, tmp_path: Path, seed: int
) -> None:
    """GIVEN mirrors in two targets, transactions published atomically, and money on the move WHEN
    mirrors and NATS are killed at random THEN no reader of a target ever sees a sum that never was,
    and in the end source and targets are equal, row by row."""
    luck = random.Random(seed)
    system.pipeline["sink"] |= {"atomic": "transaction", "stream": {"atomic": True}}
    system.database.execute(f"""
        CREATE TABLE accounts (id int PRIMARY KEY, balance int, note text);
        ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL;
        INSERT INTO accounts SELECT g, 100, repeat('n', CASE WHEN g % 9 = 0 THEN 3000 ELSE 3 END)
        FROM generate_series(0, {ACCOUNTS - 1}) g
    """)
    system.start()
    path = tmp_path / "copy.db"
    light = sqlite3.connect(path, check_same_thread=False, timeout=10)
    heavy = copy.connect()
    readers = [
        Reader(lambda sql: light.execute(sql).fetchall()),
        Reader(lambda sql: heavy.execute(sql.encode()).fetchall()),
    ]
    bank = Bank(system.database, seed)
    mirrors = [
        Process(system.server.url, f"sqlite:///{path}", tmp_path / "light.log"),
        Process(system.server.url, target_url(copy), tmp_path / "heavy.log"),
    ]
    try:
        for number in range(KILLS):
            time.sleep(luck.uniform(0.2, 3.0))
            if number % 3 == 2:
                system.server.kill()
                time.sleep(luck.uniform(0, 0.5))
                system.server.start()
                continue
            for each in mirrors:
                each.kill()
                each.start()
        for each in mirrors:
            wait_for(lambda each=each: each.follows(), "the mirrors follow")  # type: ignore[misc]
        bank.stop()
        wanted = system.database.query(ROWS)
        assert bank.done > 50
        assert system.database.query(SUM) == [(TOTAL,)]
        for reader in readers:
            wait_for(lambda reader=reader: reader.look(ROWS) == wanted, "all is there")  # type: ignore[misc]
        assert [each.end() for each in mirrors] == [0, 0]
    finally:
        bank.stop()
        for reader in readers:
            reader.stop()
        for each in mirrors:
            each.process.kill()
            each.process.wait()
            print(each._log.read_text()[-3000:])
        light.close()
        heavy.close()
    for reader in readers:
        assert reader.sums
        assert set(reader.sums) == {TOTAL}
