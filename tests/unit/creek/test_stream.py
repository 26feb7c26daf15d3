"""The stream of schemas: what a subject lacks, in which order, and what is repeated."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace import config
from tailrace.creek import stream
from tailrace.creek.sql import StoredSchema
from tailrace.creek.stream import SchemaItem, SchemaStream
from tailrace.encode.creek import schema as creek
from tailrace.errors import SinkRefusedError
from tailrace.position import Lsn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class FakeJetStream:
    """A stream in memory."""

    created: int = 1
    reads: int = 0
    refuses: bool = False
    stored: dict[str, list[bytes]] = field(default_factory=dict)

    def jetstream(self, timeout: float) -> FakeJetStream:
        return self

    async def stream_info(self, _name: str) -> Any:
        return SimpleNamespace(created=self.created, state=SimpleNamespace(first_seq=1))

    async def publish(self, subject: str, content: bytes, *, stream: str) -> None:
        assert stream == "CREEK_schema"
        if self.refuses:
            raise SinkRefusedError("no")
        self.stored.setdefault(subject, []).append(content)

    def schemas(self, subject: str) -> list[tuple[str, str | None]]:
        contents = [orjson.loads(creek.unpacked(each) or b"") for each in self.stored[subject]]
        return [(content["fingerprint"], content.get("lsn")) for content in contents]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeJetStream:
    fake = FakeJetStream()

    @contextlib.asynccontextmanager
    async def connected(_sink: object) -> AsyncIterator[FakeJetStream]:
        yield fake

    async def messages(_jetstream: object, _stream: str, subject: str) -> AsyncIterator[Any]:
        fake.reads += 1
        for content in fake.stored.get(subject, []):
            yield SimpleNamespace(data=content)

    monkeypatch.setattr(stream, "connected", connected)
    monkeypatch.setattr(stream, "messages", messages)
    return fake


@pytest.fixture
def schemas() -> SchemaStream:
    pipeline = {"shape": "creek", "sink": {"type": "nats"}}
    loaded = config.Config.model_validate({"pipelines": {"p": pipeline}})
    return SchemaStream("p", loaded.pipelines["p"])


def item(fingerprint: str, lsn: int | None = None, *, joined: bool = False) -> SchemaItem:
    stored = StoredSchema(fingerprint=fingerprint, schema="{}", source="public.t", at=AT)
    return SchemaItem(stored, None if lsn is None else Lsn(lsn), joined=joined)


def publish(target: SchemaStream, *items: SchemaItem) -> list[str]:
    return asyncio.run(target.publish({"t": items}))


def test_every_version_is_published_once_and_the_newest_last(
    server: FakeJetStream, schemas: SchemaStream
) -> None:
    assert publish(schemas, item("a", 10), item("b", 20)) == ["t"]
    assert server.schemas("t") == [("a", "0/A"), ("b", "0/14")]
    assert publish(schemas, item("a", 10), item("b")) == []
    assert server.reads == 1


def test_a_version_that_returns_is_published_again(
    server: FakeJetStream, schemas: SchemaStream
) -> None:
    publish(schemas, item("a"), item("b"))
    assert publish(schemas, item("b"), item("a")) == ["t"]
    assert [name for name, _ in server.schemas("t")] == ["a", "b", "a"]


def test_a_table_that_joins_is_announced_with_an_unchanged_schema(
    server: FakeJetStream, schemas: SchemaStream
) -> None:
    publish(schemas, item("a"))
    assert publish(schemas, item("a", 10, joined=True)) == ["t"]
    assert publish(schemas, item("a", 10, joined=True)) == []
    assert publish(schemas, item("a", 20)) == []
    assert server.schemas("t") == [("a", None), ("a", "0/A")]


def test_a_restart_reads_what_the_stream_holds(
    server: FakeJetStream, schemas: SchemaStream
) -> None:
    server.stored["t"] = [b"not a schema", creek.packet(b'{"fingerprint": "a", "schema": "{}"}')]
    assert publish(schemas, item("a")) == []


def test_a_recreated_stream_gets_every_schema_again(
    server: FakeJetStream, schemas: SchemaStream
) -> None:
    publish(schemas, item("a"))
    server.stored.clear()
    assert publish(schemas, item("a")) == []
    server.created = 2
    assert publish(schemas, item("a")) == ["t"]


def test_after_a_refusal_the_stream_is_read_again(
    server: FakeJetStream, schemas: SchemaStream
) -> None:
    publish(schemas, item("a"))
    server.refuses = True
    with pytest.raises(SinkRefusedError):
        publish(schemas, item("b"))
    server.refuses = False
    assert publish(schemas, item("b")) == ["t"]
    assert server.reads == 2
