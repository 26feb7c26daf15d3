"""What a server is asked without changing anything: whether it answers, and how it keeps data."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.errors import SinkRefusedError
from tailrace.finding import info, warning
from tailrace.sinks.redis.servers import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.finding import Finding
    from tailrace.sinks.redis.connection import Connection
    from tailrace.sinks.redis.settings import RedisSink

_OLDEST = (6, 0)
_WAITAOF = (7, 2)


def probe(settings: RedisSink, *, name: str) -> None:
    """Raise an error unless Redis answers. `name` is the pipeline's."""
    servers = connect(settings, name=name)
    with contextlib.closing(servers):
        servers.of(settings.prefix.encode()).call("PING")


def inspect(settings: RedisSink) -> Iterator[Finding]:
    """Raise an error unless Redis answers; report what makes it lose data."""
    servers = connect(settings, name="check")
    with contextlib.closing(servers):
        connection = servers.of(settings.prefix.encode())
        connection.call("PING")
        try:
            facts = _facts(connection)
        except SinkRefusedError:
            # INFO is not among the rights that a sink needs.
            return
    yield from findings(settings, facts)


def findings(settings: RedisSink, facts: dict[str, str]) -> Iterator[Finding]:
    """What INFO says about a server, compared with the settings."""
    version = tuple(int(part) for part in facts.get("redis_version", "0").split(".")[:2])
    if version < _OLDEST:
        yield warning(
            f"Redis {facts.get('redis_version')} is not supported", "Use Redis 6 or newer."
        )
    if settings.wait_aof and version < _WAITAOF:
        yield warning("`wait_aof` needs Redis 7.2", "Upgrade Redis, or remove `wait_aof`.")
    if facts.get("maxmemory_policy", "").startswith("allkeys"):
        yield warning(
            f"Redis evicts any keys when it is full ({facts['maxmemory_policy']}), also streams "
            "and the pipeline's position",
            "CONFIG SET maxmemory-policy noeviction, or a volatile- policy",
        )
    if facts.get("aof_enabled") == "0":
        yield info(
            "Redis has no append-only file: a crash loses what came after its last snapshot",
            "CONFIG SET appendonly yes",
        )


def _facts(connection: Connection) -> dict[str, str]:
    text = connection.call("INFO").decode("utf-8", "replace")
    lines = [line.partition(":") for line in text.splitlines() if not line.startswith("#")]
    return {key: value for key, colon, value in lines if colon}
