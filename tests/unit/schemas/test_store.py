"""Schema documents in a bucket: message first, read again after another client has written."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace.jetstream.bucket import Bucket, BucketSettings, Entry, WriteConflictError
from tailrace.schemas import store
from tailrace.schemas.store import DocumentStore
from tailrace.sinks.nats.settings import NatsSink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    Documents = list[dict[str, Any]]


class FakeBucket:
    """A bucket in memory that counts reads and records what happens in which order."""

    def __init__(self) -> None:
        self.values: dict[str, list[bytes]] = {}
        self.revision = 0
        self.revisions: dict[str, int] = {}
        self.events: list[str] = []
        self.histories = 0

    async def get(self, key: str) -> Entry | None:
        values = self.values.get(key)
        return Entry(values[-1], self.revisions[key]) if values else None

    async def history(self, key: str) -> list[bytes]:
        self.histories += 1
        return list(self.values[key])

    async def create(self, key: str, value: bytes) -> int:
        return await self.update(key, value, 0)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        if self.revisions.get(key, 0) != revision:
            raise WriteConflictError("another client is writing")
        self.write(key, value)
        self.events.append(f"bucket {key}")
        return self.revision

    def write(self, key: str, value: bytes) -> None:
        self.revision += 1
        self.revisions[key] = self.revision
        self.values.setdefault(key, []).append(value)

    async def publish(self, subject: str, _value: bytes) -> None:
        self.events.append(f"message {subject}")

    async def flush(self) -> None:
        self.events.append("flush")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> FakeBucket:
    fake = FakeBucket()

    @contextlib.asynccontextmanager
    async def connected(_sink: object) -> AsyncIterator[FakeBucket]:
        yield fake

    async def open_bucket(_client: object, settings: BucketSettings) -> FakeBucket:
        assert (settings.name, settings.history) == ("schemas", 64)
        return fake

    monkeypatch.setattr(store, "connected", connected)
    monkeypatch.setattr(Bucket, "open", open_bucket)
    return fake


def documents() -> DocumentStore:
    return DocumentStore(NatsSink(type="nats"), "json")


def write(
    target: DocumentStore, added: Documents, seen: list[Documents] | None = None
) -> list[str]:
    def additions(_key: str, stored: Documents) -> Documents:
        if seen is not None:
            seen.append([*stored])
        return added

    return asyncio.run(target.write(["users"], additions))


def test_the_message_is_published_before_the_bucket_is_written(bucket: FakeBucket) -> None:
    assert write(documents(), [{"version": 1}, {"version": 2}]) == ["users"]
    assert bucket.events == ["message schema.users", "flush", "bucket users"] * 2
    assert [orjson.loads(value)["version"] for value in bucket.values["users"]] == [1, 2]


def test_a_key_without_additions_is_not_written(bucket: FakeBucket) -> None:
    assert write(documents(), []) == []
    assert bucket.events == []


def test_documents_are_read_once_while_no_other_client_writes(bucket: FakeBucket) -> None:
    bucket.write("users", b'{"version": 1}')
    target = documents()
    seen: list[Documents] = []
    write(target, [{"version": 2}], seen)
    write(target, [], seen)
    assert seen == [[{"version": 1}], [{"version": 1}, {"version": 2}]]
    assert bucket.histories == 1
    bucket.write("users", b'{"version": 3}')
    write(target, [], seen)
    assert seen[-1] == [{"version": 1}, {"version": 2}, {"version": 3}]
    assert bucket.histories == 2


def test_values_of_other_programs_are_ignored(bucket: FakeBucket) -> None:
    for value in (b"\xff", b"[]", b'{"version": 1}'):
        bucket.write("users", value)
    seen: list[Documents] = []
    write(documents(), [], seen)
    assert seen == [[{"version": 1}]]


def test_after_a_conflict_everything_is_read_again(bucket: FakeBucket) -> None:
    target = documents()
    write(target, [{"version": 1}])

    def additions(_key: str, _stored: Documents) -> Documents:
        bucket.write("users", b'{"version": 7}')
        return [{"version": 2}]

    with pytest.raises(WriteConflictError):
        asyncio.run(target.write(["users"], additions))
    seen: list[Documents] = []
    write(target, [], seen)
    assert seen == [[{"version": 1}, {"version": 7}]]
