"""What Tailrace knows about the sink `redis`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import ConfigError, TailraceError
from tailrace.finding import Finding, Severity, error
from tailrace.sinks.redis.destination import KeyTemplate
from tailrace.sinks.redis.settings import RedisSink
from tailrace.sinks.sink_type import Promises, SinkType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.sinks.contract import Lane, Sink

# ruff: noqa: PLC0415 - redis-py is an extra, and is loaded where a sink is opened


class RedisType(SinkType[RedisSink]):
    """A stream entry per message, the latest state per key, or a published message."""

    name = "redis"
    title = "Redis"
    settings = RedisSink
    promises = Promises(
        delivery=(
            "exactly once as far as Redis keeps its data; in a cluster with `mode: string` at "
            "least once. After a failover of Redis, or a crash without `appendfsync always`, "
            "confirmed messages may be missing: `wait_replicas` and `wait_aof` confirm later. "
            "Subscribers of `mode: publish` receive at most once."
        ),
        order="per lane; one lane keeps the order of commits. In a cluster per stream or key",
        duplicates=(
            "Messages and the position that they reach are written by one script, which a sink "
            "that was replaced cannot run. A message is repeated if the position is deleted or "
            "evicted; with `ids: position` Redis refuses it then."
        ),
        largest_message="`max_message_bytes`, 5 MiB by default; a larger one is parked",
        batch="`batch_rows` messages in a script, 1,000 by default; four scripts in flight",
    )

    def destination(self, template: str, *, database: str) -> KeyTemplate:
        """Fills a template of names."""
        return KeyTemplate(template, database=database)

    def stores_position(self, settings: RedisSink) -> bool:
        """In each script."""
        return settings.stores_position

    def open(self, settings: RedisSink, lane: Lane) -> Sink:
        """Connections to a server or to the masters of a cluster."""
        from tailrace.sinks.redis.sink import Redis

        if settings.ids == "position" and lane.lanes > 1:
            raise ConfigError(
                f"`ids: position` needs a single lane, the pipeline has {lane.lanes}: ids of a "
                "stream must increase",
                hint="Set `lanes: 1` for the pipeline, or `ids: auto` for its sink.",
            )
        return Redis(settings, lane)

    def probe(self, settings: RedisSink, *, name: str) -> None:
        """The server must answer."""
        from tailrace.sinks.redis.server_check import probe

        probe(settings, name=name)

    def check(self, settings: RedisSink) -> Iterator[Finding]:
        """Report what makes Redis lose data."""
        from tailrace.sinks.redis.server_check import inspect

        try:
            yield from inspect(settings)
        except TailraceError as failed:
            yield error(str(failed), failed.hint)
        else:
            yield Finding(severity=Severity.OK, finding=f"{self.title} answers")


SINK = RedisType()
