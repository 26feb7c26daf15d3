"""A key-value bucket of JetStream: open or create it, read, write.

For schema documents, drift findings and compression dictionaries. Errors leave as `SinkError`s;
no caller imports nats-py.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nats.errors
import nats.js.errors
from nats.js.api import KeyValueConfig
from nats.js.kv import KV_OP

from tailrace.errors import SinkUnreachableError
from tailrace.jetstream.client import TIMEOUT_S, messages, translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.kv import KeyValue

MAX_HISTORY = 64
"""The most revisions per key that JetStream allows."""


class WriteConflictError(SinkUnreachableError):
    """Another client wrote the key after it was read. Read it again, then retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """What a bucket is created with if it is missing. An existing bucket is never altered."""

    name: str
    description: str
    history: int = 1
    max_age_s: float = 0.0
    """0: no limit."""
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """The latest value of a key."""

    value: bytes
    revision: int


class Bucket:
    """An open bucket."""

    def __init__(self, jetstream: JetStreamContext, store: KeyValue, name: str) -> None:
        self._jetstream = jetstream
        self._store = store
        self._name = name

    @classmethod
    async def open(cls, client: Client, settings: BucketSettings) -> Bucket:
        """Open the bucket; create it if it is missing."""
        jetstream = client.jetstream(timeout=TIMEOUT_S)
        with _translated(settings.name):
            try:
                store = await jetstream.key_value(settings.name)
            except nats.js.errors.NotFoundError:
                store = await jetstream.create_key_value(
                    KeyValueConfig(
                        bucket=settings.name,
                        description=settings.description,
                        history=settings.history,
                        ttl=settings.max_age_s or None,
                        replicas=settings.replicas,
                    )
                )
        return cls(jetstream, store, settings.name)

    async def get(self, key: str) -> Entry | None:
        """The latest value; None if the key is missing or was deleted."""
        with _translated(self._name):
            try:
                entry = await self._store.get(key)
            except nats.js.errors.KeyNotFoundError:
                return None
        return Entry(entry.value or b"", entry.revision or 0)

    async def put(self, key: str, value: bytes) -> int:
        """Write the value, whatever was there before; its revision."""
        with _translated(self._name):
            return await self._store.put(key, value)

    async def create(self, key: str, value: bytes) -> int:
        """Write the first value of a key. Raises WriteConflictError if the key has one."""
        with _translated(self._name):
            return await self._store.create(key, value)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Write the value after `revision`. Raises WriteConflictError if that is not the latest."""
        with _translated(self._name):
            return await self._store.update(key, value, revision)

    async def history(self, key: str) -> list[bytes]:
        """The values of a key, oldest first, without deletions."""
        with _translated(self._name):
            return [
                message.data or b""
                async for message in messages(
                    self._jetstream, f"KV_{self._name}", f"$KV.{self._name}.{key}"
                )
                if not (message.headers or {}).get(KV_OP)
            ]


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except nats.js.errors.KeyWrongLastSequenceError as error:
        raise WriteConflictError(f"another client is writing to the bucket {name}") from error
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise translate_error(error) from error
