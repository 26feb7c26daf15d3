"""`Redis`: the sink. Messages are sent as they are written, several scripts ahead of their answers.

Every script stores the position that it reaches, so a script that was not confirmed is no problem:
the next sink reads the position back and skips what Redis holds. Only in a cluster with mode
`string` there is no position (`writer.Commands`); setting a key again changes nothing there.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tailrace.errors import PoisonedError, SinkError, SinkUnreachableError
from tailrace.sinks.destination import DELETE
from tailrace.sinks.outcome import Outcome
from tailrace.sinks.redis.account import hash_tag, wrong_type
from tailrace.sinks.redis.servers import connect
from tailrace.sinks.redis.writer import Commands, Scripts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane, Receipt
    from tailrace.sinks.redis.connection import Connection
    from tailrace.sinks.redis.servers import Servers
    from tailrace.sinks.redis.settings import RedisSink
    from tailrace.sinks.redis.writer import Writer

_FIT_KEPT = 100_000
_WAIT_SHARE = 0.8
"""How much of `timeout_s` Redis may wait for replicas, so that its answer arrives in time."""


class Redis:
    """Delivers the messages of a lane."""

    def __init__(self, settings: RedisSink, lane: Lane) -> None:
        self._settings = settings
        self._lane = lane
        self._servers: Servers | None = None
        self._writer: Writer | None = None
        self._fit: set[bytes] = set()
        """Destinations that can be written to."""
        self._dirty = False
        """Whether something was written since the last flush."""

    def open(self, after: Position) -> None:
        """Connect, and take over the lane."""
        try:
            if not self._reopened(after):
                self.close()
                self._servers = connect(self._settings, name=self._lane.pipeline)
                self._take_over(self._servers, after)
        except BaseException:
            self.close()
            raise

    def _reopened(self, after: Position) -> bool:
        """Whether the connections are still open."""
        if self._servers is None or self._dirty:
            return False
        try:
            self._take_over(self._servers, after)
        except SinkUnreachableError:
            return False
        return True

    def _take_over(self, servers: Servers, after: Position) -> None:
        self._fit.clear()
        if self._settings.stores_position:
            self._writer = Scripts(servers, self._settings, self._lane, after=after)
        else:
            self._writer = Commands(servers, self._settings)

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows that are too large, without a valid name or key, or of a key of another type."""
        with self._attempt() as (servers, writer):
            errors: dict[int, SinkError] = {}
            for reason, rows in self._unfit_destinations(servers, batch.column("destination")):
                errors.update(dict.fromkeys(rows, reason))
            if self._settings.mode == "string" and batch.column("key").null_count:
                keyless = PoisonedError(
                    "it has no key, and mode `string` stores a key per row",
                    hint="Set `key`, or omit such changes: `where: op <> 'truncate'`.",
                )
                rows = pc.indices_nonzero(pc.is_null(batch.column("key"))).to_pylist()
                errors.update(dict.fromkeys(rows, keyless))
            limit = self._settings.max_message_bytes
            sizes = pc.binary_length(batch.column("payload")).to_numpy()
            for row in np.flatnonzero(sizes > limit).tolist():
                errors[row] = PoisonedError(
                    f"it has {sizes[row]} bytes, max_message_bytes is {limit}",
                    hint="Raise max_message_bytes, or exclude large columns.",
                )
            # Redis may hold messages that it would not take today.
            held = writer.held(batch) if errors else 0
            return {row: Outcome.refused(each) for row, each in errors.items() if row >= held}

    def _unfit_destinations(
        self, servers: Servers, destinations: pa.BinaryArray
    ) -> Iterator[tuple[SinkError, list[int]]]:
        if len(self._fit) > _FIT_KEPT:
            self._fit.clear()
        unknown = [each for each in pc.unique(destinations).to_pylist() if each not in self._fit]
        errors = {each: error for each in unknown if (error := self._invalid(each))}
        if self._settings.mode == "stream":
            valid = [each for each in unknown if each not in errors]
            for name, kind in zip(valid, _types(servers, valid), strict=True):
                if kind not in (b"none", b"stream"):
                    errors[name] = wrong_type(name, kind)
        self._fit.update(each for each in unknown if each not in errors)
        for each, error in errors.items():
            yield error, pc.indices_nonzero(pc.equal(destinations, each)).to_pylist()

    def _invalid(self, destination: bytes) -> SinkError | None:
        mode = self._settings.mode
        name = destination.removeprefix(DELETE.encode()) if mode == "string" else destination
        if not name:
            return PoisonedError("its destination is empty", hint="Change `route`.")
        if mode == "stream" and self._settings.cluster and hash_tag(name) is None:
            return PoisonedError(
                f"its stream {name.decode('utf-8', 'replace')!r} has a `}}` outside of a hash tag",
                hint="Change `route`: a cluster finds the slot of a stream by its braces.",
            )
        return None

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the messages that Redis does not hold."""
        with self._attempt() as (_, writer):
            self._dirty = True
            writer.write(batch)

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait for all answers, and for replicas and disks as the settings say."""
        del end
        with self._attempt() as (servers, writer):
            for connection in servers.used():
                connection.receive()
            receipt = writer.receipt()
            if self._dirty:
                for connection in servers.used():
                    self._wait(connection)
            self._dirty = False
            return receipt

    def _wait(self, connection: Connection) -> None:
        """Wait until replicas, and append-only files, have everything that this connection sent.

        Taking over the lane was a write, so this includes what an earlier sink had sent.
        """
        replicas, limit_ms = self._settings.wait_replicas, int(self._timeout_s * 1000)
        if self._settings.wait_aof:
            local, others = connection.call("WAITAOF", 1, replicas, limit_ms)
            if not local:
                raise SinkUnreachableError(
                    f"{connection.where} has not fsynced its append-only file within "
                    f"{self._timeout_s:g} s",
                    hint="Set appendfsync to everysec or always.",
                )
        elif replicas:
            others = connection.call("WAIT", replicas, limit_ms)
        else:
            return
        if others < replicas:
            raise SinkUnreachableError(
                f"{others} of {replicas} replicas of {connection.where} have confirmed within "
                f"{self._timeout_s:g} s"
            )

    @property
    def _timeout_s(self) -> float:
        return max(_WAIT_SHARE * self._settings.timeout_s, 0.001)

    def close(self) -> None:
        """Close all connections. Messages without an answer may have arrived."""
        servers, self._servers, self._writer = self._servers, None, None
        self._dirty = False
        if servers is not None:
            servers.close()

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[tuple[Servers, Writer]]:
        """Use the connections. Any failure closes the sink."""
        if self._servers is None or self._writer is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._lane.pipeline} is not open")
        try:
            yield self._servers, self._writer
        except BaseException:
            self.close()
            raise


def _types(servers: Servers, keys: list[bytes]) -> list[bytes]:
    """What each key holds."""
    found: dict[bytes, bytes] = {}
    for key in keys:
        servers.of(key).ask("TYPE", key, receive=partial(found.__setitem__, key))
    for connection in servers.used():
        connection.receive()
    return [found[key] for key in keys]
