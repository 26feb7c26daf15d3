"""Which connection a key belongs to: that of one server, of Sentinel's master, or of a node.

A cluster is asked for its slots when the sink connects. If a slot moves later, Redis refuses the
request (MOVED) without effect, the sink is closed, and the next one asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from tailrace.sinks.redis.connection import Connection, options, tls_options
from tailrace.sinks.redis.failures import translated

if TYPE_CHECKING:
    from typing import Any, Protocol

    from tailrace.sinks.redis.settings import RedisSink

    class Servers(Protocol):
        """Connections, made when they are needed."""

        def of(self, key: bytes) -> Connection:
            """The connection for a key."""

        def used(self) -> list[Connection]:
            """All connections."""

        def close(self) -> None:
            """Close all connections."""


class OneServer:
    """One server has all keys."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def of(self, key: bytes) -> Connection:
        """The only connection."""
        del key
        return self._connection

    def used(self) -> list[Connection]:
        """The only connection."""
        return [self._connection]

    def close(self) -> None:
        """Close it."""
        self._connection.close()


class Nodes:
    """The masters of a cluster. A key's slot belongs to one of them."""

    def __init__(self, settings: RedisSink, *, name: str) -> None:
        self._settings = settings
        self._name = name
        self._connections: dict[tuple[str, int], Connection] = {}
        tls = settings.address.tls
        found = options(settings, name=name) | ({"ssl": True} if tls else {})
        if tls:
            found |= tls_options(settings)
        nodes = [ClusterNode(host, port) for host, port in settings.address.hosts]
        with translated(f"Redis Cluster at {settings.address}", cluster=True):
            self._topology = RedisCluster(startup_nodes=nodes, **found)

    def of(self, key: bytes) -> Connection:
        """The connection to the master that has a key."""
        with translated(f"Redis Cluster at {self._settings.address}", cluster=True):
            node = self._topology.get_node_from_key(key)
        place = (str(node.host), int(node.port))
        if place not in self._connections:
            self._connections[place] = Connection.to(self._settings, *place, name=self._name)
        return self._connections[place]

    def used(self) -> list[Connection]:
        """Those that are connected."""
        return list(self._connections.values())

    def close(self) -> None:
        """Close all connections."""
        self._topology.close()
        for connection in self._connections.values():
            connection.close()


def connect(settings: RedisSink, *, name: str) -> Servers:
    """Connect as the settings say. `name` is the pipeline's."""
    address = settings.address
    if settings.cluster:
        return Nodes(settings, name=name)
    if address.path:
        return OneServer(Connection.to_socket(settings, address.path, name=name))
    host, port = _master(settings) if settings.sentinel_master else address.hosts[0]
    return OneServer(Connection.to(settings, host, port, name=name))


def _master(settings: RedisSink) -> tuple[str, int]:
    """The address of the master, as one of the Sentinels knows it."""
    shared: dict[str, Any] = {
        "socket_timeout": settings.timeout_s,
        "socket_connect_timeout": settings.timeout_s,
        "password": settings.sentinel_password.get_secret_value() or None,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    if settings.address.tls:
        shared |= {"ssl": True, **tls_options(settings)}
    sentinel = Sentinel(settings.address.hosts, sentinel_kwargs=shared)
    try:
        with translated(f"Sentinel at {settings.address}"):
            host, port = sentinel.discover_master(settings.sentinel_master)
    finally:
        for each in sentinel.sentinels:
            each.close()
    return str(host), int(port)
