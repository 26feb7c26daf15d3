"""Connections that write all the time, through whatever happens to the server."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_postgres import Database


class Writing(ABC):
    """Threads with a connection each, which is made anew whenever it is lost.

    A context manager: they write from its beginning to its end. What they write is up to `turns`.
    """

    writers: ClassVar[int]

    def __init__(self, database: Database, *, seed: int) -> None:
        self._database = database
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(writer, random.Random(seed + writer)))
            for writer in range(self.writers)
        ]

    @abstractmethod
    def turns(
        self, connection: psycopg.Connection, writer: int, rng: random.Random
    ) -> Iterator[float]:
        """Transactions without end, one a turn; each yields how many seconds to pause after it."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors, self._errors

    def _run(self, writer: int, rng: random.Random) -> None:
        while not self._stop.is_set():
            try:
                with self._database.connect() as connection:
                    for pause_s in self.turns(connection, writer, rng):
                        if self._stop.wait(pause_s):
                            break
            except (psycopg.OperationalError, psycopg.Rollback):
                # A rollback comes out of its transaction when the server dies in the middle of it.
                self._stop.wait(0.05)
            except BaseException as error:
                self._errors.append(error)
                raise
