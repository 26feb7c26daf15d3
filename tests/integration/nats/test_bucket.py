"""Key-value buckets: created once, written by revision, errors as Tailrace's errors."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, TypeVar

import nats
import pytest
from pydantic import SecretStr

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.jetstream.bucket import Bucket, BucketSettings, WriteConflictError
from tailrace.jetstream.client import connected
from tailrace.testing import EmbeddedNats

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.sinks.nats.settings import NatsSink

T = TypeVar("T")
_numbers = itertools.count()


def own_bucket(history: int = 8, max_age_s: float = 0.0) -> BucketSettings:
    name = f"bucket{next(_numbers)}"
    return BucketSettings(name=name, description="A test.", history=history, max_age_s=max_age_s)


def run(settings: NatsSink, bucket: BucketSettings, act: Callable[[Bucket], Awaitable[T]]) -> T:
    async def main() -> T:
        async with connected(settings) as client:
            return await act(await Bucket.open(client, bucket))

    return asyncio.run(main())


def test_values_are_read_back(settings: NatsSink) -> None:
    async def act(bucket: Bucket) -> None:
        assert await bucket.get("a.b") is None
        first = await bucket.create("a.b", b"1")
        second = await bucket.update("a.b", b"2", first)
        await bucket.put("a.b", b"3")
        await bucket.put("other", b"4")
        entry = await bucket.get("a.b")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"3", second + 1)
        assert await bucket.history("a.b") == [b"1", b"2", b"3"]
        assert await bucket.history("missing") == []
        assert await bucket.history("other") == [b"4"]

    run(settings, own_bucket(), act)


def test_a_deleted_key_is_missing_and_its_history_has_no_deletion(settings: NatsSink) -> None:
    bucket = own_bucket()

    async def delete() -> None:
        client = await nats.connect(settings.url.get_secret_value())
        store = await client.jetstream(timeout=60).key_value(bucket.name)
        await store.delete("a")
        await client.close()

    run(settings, bucket, lambda opened: opened.put("a", b"1"))
    asyncio.run(delete())

    async def act(opened: Bucket) -> None:
        assert await opened.get("a") is None
        assert await opened.history("a") == [b"1"]

    run(settings, bucket, act)


def test_a_write_after_another_client_wrote_is_a_conflict(settings: NatsSink) -> None:
    async def act(bucket: Bucket) -> None:
        revision = await bucket.create("a", b"1")
        await bucket.put("a", b"2")
        with pytest.raises(WriteConflictError, match="another client"):
            await bucket.update("a", b"3", revision)
        with pytest.raises(WriteConflictError, match="another client"):
            await bucket.create("a", b"3")

    run(settings, own_bucket(), act)


def test_an_existing_bucket_is_not_altered(settings: NatsSink) -> None:
    bucket = own_bucket(history=3, max_age_s=60)
    run(settings, bucket, lambda opened: opened.put("a", b"1"))
    again = BucketSettings(name=bucket.name, description="Another.", history=8)
    run(settings, again, lambda opened: opened.put("a", b"2"))

    async def config() -> tuple[int | None, float | None, str | None]:
        async with connected(settings) as client:
            info = await client.jetstream(timeout=60).stream_info(f"KV_{bucket.name}")
        stream = info.config
        return stream.max_msgs_per_subject, stream.max_age, stream.description

    assert asyncio.run(config()) == (3, 60, "A test.")


def test_a_bucket_that_jetstream_refuses(settings: NatsSink) -> None:
    with pytest.raises(SinkRefusedError, match="JetStream refused the request"):
        run(settings, own_bucket(history=65), lambda bucket: bucket.get("a"))


def test_a_server_without_jetstream_or_that_is_down_is_unreachable(settings: NatsSink) -> None:
    with EmbeddedNats(config="accounts { A { users: [{user: a, password: a}] } }") as server:
        url = SecretStr(f"nats://a:a@127.0.0.1:{server.port}")
        plain = settings.model_copy(update={"url": url})
        with pytest.raises((SinkUnreachableError, SinkRefusedError)):
            run(plain, own_bucket(), lambda bucket: bucket.get("a"))
    with pytest.raises(SinkUnreachableError, match="NATS does not answer"):
        run(plain, own_bucket(), lambda bucket: bucket.get("a"))
