"""Fixtures for the S3 API: a server of moto in a process of its own, one per session."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import fsspec
import pytest

from tailrace.testing.process import Server, free_port
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class S3Server(Server):
    """A server with one bucket. What it holds is in its memory. With `accounts` it has none, and
    refuses every login."""

    bucket = "bucket"

    def __init__(self, *, certificate: Path | None = None, accounts: bool = False) -> None:
        super().__init__("s3")
        self._certificate = certificate
        self._env = os.environ | ({"INITIAL_NO_AUTH_ACTION_COUNT": "0"} if accounts else {})
        self.port = free_port()

    @property
    def options(self) -> dict[str, Any]:
        """The options of fsspec."""
        scheme = "http" if self._certificate is None else "https"
        return {
            "key": "an-access-key",
            "secret": "planted-secret-of-s3",
            "endpoint_url": f"{scheme}://127.0.0.1:{self.port}",
        }

    def start(self) -> Self:
        tls = []
        if self._certificate is not None:
            key = self._certificate.with_suffix(".key")
            tls = ["-c", str(self._certificate), "-k", str(key)]
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *tls], stdout=log, stderr=log, env=self._env
            )
        wait_for(self._listens, self.recent_log)
        return self

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def create_bucket(self) -> None:
        """Create the bucket."""
        files = fsspec.filesystem("s3", **self.options, skip_instance_cache=True)
        files.mkdir(self.bucket)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A server, shared: every test has a folder of its own."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is not installed")
    with S3Server() as server:
        server.create_bucket()
        yield server
