"""A real RabbitMQ server for tests and benchmarks.

The programs `rabbitmq-server` and `epmd` must be installed. A package's own scripts change to its
user and its folders, so the scripts that they call are started instead.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from tailrace.process import die_with_parent
from tailrace.testing.process import Server, end, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGE = Path("/usr/lib/rabbitmq/bin")
"""Where Debian keeps the scripts that run as any user."""
_START_S = 300
_HEADER = b"AMQP\x00\x00\x09\x01"


class EmbeddedRabbitMQ(Server):
    """One RabbitMQ server with the user guest. `config` are lines for `rabbitmq.conf`.

    With `tls` of a folder that has ca.crt, server.crt and server.key, it serves `tls_port`, too.
    Clients need a certificate there.
    """

    stop_s: ClassVar = 60.0

    def __init__(
        self, *, config: str = "", tls: Path | None = None, plugins: Sequence[str] = ()
    ) -> None:
        super().__init__("trrabbit-")
        self.port = free_port()
        self.tls_port = free_port()
        self.config = config
        self._tls = tls
        self._plugins = plugins
        self._epmd: subprocess.Popen[bytes] | None = None
        self._ports = {"RABBITMQ_DIST_PORT": free_port(), "ERL_EPMD_PORT": free_port()}
        self._cookie = secrets.token_hex(16)

    @classmethod
    def unavailable(cls) -> str | None:
        """Why there can be no server; None if there can be one."""
        for program in ("rabbitmq-server", "epmd"):
            if _program(program) is None:
                return f"{program} is not installed"
        return None

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"amqp://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Run the server and wait until it serves clients."""
        (self.folder / "rabbitmq.conf").write_text(self._configuration())
        (self.folder / "plugins").write_text(f"[{','.join(self._plugins)}].\n")
        environment = self._environment()
        # The server would start a port mapper of its own, which outlives it.
        mapper = ["-port", environment["ERL_EPMD_PORT"], "-address", "127.0.0.1"]
        if self._epmd is None:
            self._epmd = self._run("epmd", *mapper)
        self._process = self._run("rabbitmq-server")
        self._wait_until_ready(time.monotonic() + _START_S)
        return self

    def control(self, *words: str) -> str:
        """The output of a command of `rabbitmqctl`."""
        done = subprocess.run(
            [str(_program("rabbitmqctl")), "--quiet", *words],
            env=self._environment(),
            capture_output=True,
            check=False,
            timeout=_START_S,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {words[0]}: {done.stderr.decode()}")
        return done.stdout.decode()

    def destroy(self) -> None:
        """Kill the server and its port mapper, and remove its folder."""
        epmd, self._epmd = self._epmd, None
        end(epmd, signal.SIGKILL, timeout_s=10, at_last=signal.SIGKILL)
        super().destroy()

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(_program(program)), *arguments],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),  # noqa: PLW1509
        )

    def _configuration(self) -> str:
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            "loopback_users = none",
            "disk_free_limit.absolute = 1MB",
            self.config,
        ]
        if self._tls is not None:
            lines += [
                f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
                f"ssl_options.cacertfile = {self._tls}/ca.crt",
                f"ssl_options.certfile = {self._tls}/server.crt",
                f"ssl_options.keyfile = {self._tls}/server.key",
                "ssl_options.verify = verify_peer",
                "ssl_options.fail_if_no_peer_cert = true",
            ]
        return "\n".join([*lines, ""])

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            **os.environ,
            **{name: str(port) for name, port in self._ports.items()},
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "HOME": str(folder),
            "RABBITMQ_ERLANG_COOKIE": self._cookie,
            "RABBITMQ_NODENAME": f"{folder.name}@localhost",
            "RABBITMQ_BASE": str(folder),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOGS": str(self.log_file),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PLUGINS_EXPAND_DIR": str(folder / "expanded"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # One process and no shell around it, so that a signal reaches it.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _wait_until_ready(self, deadline: float) -> None:
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the embedded RabbitMQ did not start:\n{self.recent_log()}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as client:
                client.sendall(_HEADER)
                return bool(client.recv(1))
        except OSError:
            return False


def _program(name: str) -> Path | None:
    own = _PACKAGE / name
    found = str(own) if own.exists() else shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    return Path(found) if found else None
