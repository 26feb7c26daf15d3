"""Real Redis servers, one or a cluster, for tests and benchmarks.

The program `redis-server` must be on PATH.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from typing import ClassVar, Self

from tailrace.process import die_with_parent
from tailrace.testing.process import Server, free_port

_READY = (b"Ready to accept connections", b"Sentinel ID is")
_START_S = 300


class EmbeddedRedis(Server):
    """One Redis server, which fsyncs every write before it answers.

    `arguments` are options of redis-server with underscores; `config` is a configuration file.
    """

    program: ClassVar = "redis-server"

    def __init__(self, *, config: str = "", sentinel: bool = False, **arguments: str | int) -> None:
        super().__init__("trredis-")
        self.port = free_port()
        self.config = config
        self._sentinel = sentinel
        durable: dict[str, str | int] = {
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "repl_diskless_sync_delay": 0,
        }
        self.arguments: dict[str, str | int] = {**({} if sentinel else durable), **arguments}

    @classmethod
    def unavailable(cls) -> str | None:
        """Why there can be no server; None if there can be one."""
        return None if shutil.which(cls.program) else f"{cls.program} is not on PATH"

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Run the server and wait until it has loaded its data."""
        config_file = self.folder / "redis.conf"
        config_file.write_text(self.config)
        options = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.folder,
            "logfile": self.log_file,
            **self.arguments,
        }
        words = [[f"--{key.replace('_', '-')}", str(value)] for key, value in options.items()]
        logged = self.log_file.stat().st_size if self.log_file.exists() else 0
        self._process = subprocess.Popen(
            [self.program, str(config_file), *(word for pair in words for word in pair)]
            + (["--sentinel"] if self._sentinel else []),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),  # noqa: PLW1509
        )
        self._wait_until_ready(logged)
        return self

    def command(self, words: str) -> str:
        """The answer to a command, as the server sends it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
            client.sendall(words.encode() + b"\r\n")
            return client.recv(65536).decode()

    def _wait_until_ready(self, logged: int) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            log = self.log_file.read_bytes()[logged:] if self.log_file.exists() else b""
            if any(each in log for each in _READY):
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the embedded Redis did not start:\n{self.recent_log()}")
            time.sleep(0.01)


class EmbeddedRedisCluster:
    """Masters of a Redis Cluster, which share the slots evenly. A context manager."""

    def __init__(self, size: int = 3) -> None:
        self.servers = [
            EmbeddedRedis(
                cluster_enabled="yes", cluster_port=free_port(), cluster_node_timeout=2000
            )
            for _ in range(size)
        ]

    @property
    def url(self) -> str:
        """The addresses for clients."""
        return "redis://" + ",".join(f"127.0.0.1:{each.port}" for each in self.servers)

    def start(self) -> Self:
        """Start all servers and wait until each knows all slots."""
        size = len(self.servers)
        bounds = [16384 * at // size for at in range(size + 1)]
        first = self.servers[0]
        for at, server in enumerate(self.servers):
            server.start()
            server.command(f"CLUSTER ADDSLOTSRANGE {bounds[at]} {bounds[at + 1] - 1}")
            server.command(f"CLUSTER SET-CONFIG-EPOCH {at + 1}")
            if server is not first:
                bus = first.arguments["cluster_port"]
                server.command(f"CLUSTER MEET 127.0.0.1 {first.port} {bus}")
        deadline = time.monotonic() + _START_S
        while not all(_is_whole(server) for server in self.servers):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no Redis Cluster:\n{first.recent_log()}")
            time.sleep(0.02)
        return self

    def destroy(self) -> None:
        """Kill all servers and remove their folders."""
        for server in self.servers:
            server.destroy()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.destroy()


def _is_whole(server: EmbeddedRedis) -> bool:
    return "cluster_state:ok" in server.command("CLUSTER INFO")
