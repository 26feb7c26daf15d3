"""Fixtures for the broker: the command as a process, with its own database."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Self

import pytest
from typing_extensions import override

from tailrace.testing.process import free_port
from tests.command import Service, call
from tests.fix_kafka import end_clients
from tests.fix_postgres import Database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing import EmbeddedPostgres


KAFKA_MESSAGE_BYTES = 1_048_588
"""The default max.message.bytes of Kafka."""


_ACCESS_CHANGED = "broker.access_changed"


class BrokerProcess(Service):
    """`tailrace broker` as a process, which can be killed and restarted on its port."""

    def __init__(
        self, database: Database, folder: Path, *options: str, port: int | None = None
    ) -> None:
        self.database = database
        self.port = free_port() if port is None else port
        super().__init__(
            *("broker", "--dsn", database.dsn, "--listen", self.bootstrap, *options),
            folder=folder,
            file="broker.out",
        )

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def init(self) -> None:
        self._run("--init")

    def account(self, *arguments: str, password: str = "") -> str:
        """`tailrace broker user` or `acl`, with a password on standard input.

        A running broker knows of a change when this returns.
        """
        if not self.alive or "list" in arguments:
            return self._run(*arguments, stdin=password)
        with self.access_changes():
            return self._run(*arguments, stdin=password)

    @contextlib.contextmanager
    def access_changes(self) -> Iterator[None]:
        """A block that changes users or rules. Afterwards the broker knows of it."""
        seen = self.output.count(_ACCESS_CHANGED)
        yield
        self.wait_until(lambda: self.output.count(_ACCESS_CHANGED) > seen, "the change")

    def _run(self, *arguments: str, stdin: str = "") -> str:
        done = call("broker", "--dsn", self.database.dsn, *arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @override
    def start(self) -> Self:
        """Start it, and wait until it listens."""
        super().start()
        self.wait_until(self._answers, "the broker to listen")
        return self

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture(scope="session")
def broker(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker that tests share; each test uses its own topics."""
    database = Database(name=postgres.create_database("broker"), server=postgres)
    folder = tmp_path_factory.mktemp("broker")
    limits = ("--max-message-bytes", str(KAFKA_MESSAGE_BYTES), "--no-auto-create")
    process = BrokerProcess(database, folder, "--retention-check", "5", *limits)
    process.init()
    process.start()
    try:
        yield process
        end_clients()
    finally:
        code = process.stop()
        postgres.drop_database(database.name)
    assert code == 0, process.output[-3000:]
