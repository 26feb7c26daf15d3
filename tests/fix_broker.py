"""Fixtures for the broker: the command as a process, with its own database."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tailrace.testing.process import free_port
from tests.fix_kafka import end_clients
from tests.fix_postgres import Database
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing import EmbeddedPostgres


KAFKA_MESSAGE_BYTES = 1_048_588
"""The default max.message.bytes of Kafka."""


class BrokerProcess:
    """`tailrace broker` as a process, which can be killed and restarted on its port."""

    def __init__(self, database: Database, folder: Path, *options: str) -> None:
        self.database = database
        self.port = free_port()
        self.output = folder / "broker.out"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def init(self) -> None:
        subprocess.run([*self._command(), "--init"], check=True, stdout=subprocess.DEVNULL)

    def account(self, *arguments: str, password: str = "") -> str:
        """`tailrace broker user` or `acl`, with a password on standard input."""
        command = [*self._command(), *arguments]
        done = subprocess.run(command, input=password, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log(self) -> str:
        return self.output.read_text()

    def start(self) -> None:
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._command(), "--listen", self.bootstrap, *self._options],
                stdout=output,
                stderr=output,
            )
        wait_for(self._answers, "the broker to listen", 60)

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "tailrace.cli", "broker", "--dsn", self.database.dsn]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.output.read_text()[-3000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(30)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@pytest.fixture(scope="session")
def broker(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker that tests share; each test uses its own topics."""
    database = Database(name=postgres.create_database("broker"), server=postgres)
    folder = tmp_path_factory.mktemp("broker")
    limits = ("--max-message-bytes", str(KAFKA_MESSAGE_BYTES), "--no-auto-create")
    process = BrokerProcess(database, folder, "--retention-check", "0.5", *limits)
    process.init()
    process.start()
    try:
        yield process
        end_clients()
    finally:
        code = process.stop()
        postgres.drop_database(database.name)
    assert code == 0, process.output.read_text()[-3000:]
