"""One connection to a server, over which requests are sent ahead of their answers.

redis-py connects, logs in and reads answers. Its own retries are off: only the sink knows what may
be sent again.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Any

from redis.backoff import NoBackoff
from redis.connection import Connection as Tcp
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from tailrace.sinks.certificates import readable
from tailrace.sinks.redis.failures import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.sinks.redis.settings import RedisSink

    Receive = Callable[[Any], None]
    """Takes an answer."""

_UNNAMED = re.compile(r"[^!-~]")
"""What Redis refuses in the name of a client."""


def options(settings: RedisSink, *, name: str) -> dict[str, Any]:
    """What redis-py connects with, but for the address. `name` is the pipeline's."""
    user, password = settings.login
    return {
        "username": user or None,
        "password": password or None,
        "client_name": f"tailrace-{_UNNAMED.sub('-', name)}",
        "socket_timeout": settings.timeout_s,
        "socket_connect_timeout": settings.timeout_s,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }


def tls_options(settings: RedisSink) -> dict[str, Any]:
    """The certificates. The host name is always verified."""
    files = {
        "ssl_ca_certs": settings.tls_ca,
        "ssl_certfile": settings.tls_certificate,
        "ssl_keyfile": settings.tls_key,
    }
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **readable(files)}


class Connection:
    """A connection. Answers arrive in the order of requests."""

    def __init__(self, connection: Tcp, *, where: str, cluster: bool = False) -> None:
        self.where = where
        self._connection = connection
        self._cluster = cluster
        self._waiting: deque[tuple[int, Receive]] = deque()
        """Of each request the number of its answers, and what takes them."""
        with self._translated():
            connection.connect()

    @classmethod
    def to(cls, settings: RedisSink, host: str, port: int, *, name: str) -> Connection:
        """Connect to a server over TCP."""
        found = {**options(settings, name=name), "host": host, "port": port}
        found["db"] = settings.address.database
        tls = settings.address.tls
        made = SSLConnection(**found, **tls_options(settings)) if tls else Tcp(**found)
        return cls(made, where=f"Redis at {host}:{port}", cluster=settings.cluster)

    @classmethod
    def to_socket(cls, settings: RedisSink, path: str, *, name: str) -> Connection:
        """Connect to a Unix domain socket."""
        found = options(settings, name=name)
        del found["socket_keepalive"]
        return cls(UnixDomainSocketConnection(path=path, **found), where=f"Redis at {path}")

    def call(self, *arguments: bytes | str | int) -> Any:
        """The answer to a command, after those to all earlier requests."""
        answers: list[Any] = []
        self.ask(*arguments, receive=answers.append)
        self.receive()
        return answers[0]

    def ask(self, *arguments: bytes | str | int, receive: Receive) -> None:
        """Send a command."""
        with self._translated():
            packed = self._connection.pack_command(*arguments)
        self.send(packed, receive)

    def send(self, request: Sequence[Any], receive: Receive, *, answers: int = 1) -> None:
        """Send the bytes of a request, in pieces, which has so many answers."""
        with self._translated():
            self._connection.send_packed_command(request, check_health=False)
        self._waiting.append((answers, receive))

    def receive(self, *, ahead: int = 0) -> None:
        """Read answers until no more than so many requests wait for theirs."""
        while len(self._waiting) > ahead:
            answers, receive = self._waiting.popleft()
            for _ in range(answers):
                with self._translated():
                    answer = self._connection.read_response()
                receive(answer)

    def close(self) -> None:
        """Close the connection. What has no answer yet may have arrived."""
        self._waiting.clear()
        self._connection.disconnect()

    def _translated(self) -> Any:
        return translated(self.where, cluster=self._cluster)
