"""Both layouts of streams, and messages that Creek has divided into several packets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tailrace.client.connection import MissingStreamError
from tailrace.encode.creek import schema as creek
from tests.integration.creek.client.calls import rest, run_connected, take
from tests.integration.creek.client.producer import (
    DATABASE,
    USERS,
    Producer,
    divided,
    encode,
    event,
)

if TYPE_CHECKING:
    from tailrace.client.creek import Creek
    from tailrace.testing import EmbeddedNats

ROWS = [{"id": 1, "name": "Ada"}, {"id": 2, "name": "x" * 100}]


def insert(number: int) -> bytes:
    return event(USERS, "c", after={"id": number, "name": "x" * 100}, lsn=number)


@pytest.mark.parametrize("layout", [None, "database"])
def test_client_reads_the_streams_of_a_database(server: EmbeddedNats, layout: str | None) -> None:
    """GIVEN a producer with layout database WHEN a client connects THEN it finds the layout, and
    changes, schemas and snapshots are those of the database's own streams."""
    with Producer(server, layout="database") as feeding:
        feeding.publish_schema(USERS)
        feeding.wal(USERS, insert(1), insert(2))
        topic = feeding.snapshot(USERS, ROWS)

        async def check(client: Creek) -> None:
            changes = await take(client.stream_wal(DATABASE, "users"), 2)
            assert [wal.source.lsn for wal in changes] == ["0/1", "0/2"]
            last = await client.last_schema(DATABASE, "users")
            assert last is not None
            assert await client.get_schema(last.fingerprint) == last
            assert await client.databases() == [DATABASE]
            assert await rest(client.snapshot(DATABASE, "users")) == ROWS
            assert await rest(client.get_snapshot(topic)) == ROWS
            listed = await client.list_snapshots(DATABASE, "users")
            assert [each.topic for each in listed] == [topic]
            assert await client.feed(DATABASE).stream_identity() is not None

        run_connected(feeding.url, check, layout=layout)
        assert topic.startswith("CREEK_snap_shop.public.users.")


def test_a_namespace_without_streams(server: EmbeddedNats) -> None:
    async def check(_client: Creek) -> None:
        pytest.fail("connected")

    with pytest.raises(MissingStreamError, match="NONE_wal"):
        run_connected(server.url, check, namespace="NONE")


@pytest.mark.parametrize("size", [1, 50, 1000])
def test_messages_in_several_packets(feeding: Producer, size: int) -> None:
    """GIVEN changes, a schema and a snapshot that Creek has divided WHEN a client reads them THEN
    it gets them whole, and resumes after any of them."""
    fingerprint = feeding.serve_schema(USERS)
    for payload in divided(_schema_packet(feeding, fingerprint), size):
        feeding.publish(feeding.subject("schema", USERS), payload)
    packets = [packet for number in (1, 2, 3) for packet in divided(insert(number), size)]
    feeding.wal(USERS, *packets)
    topic = feeding.topic(USERS)
    rows = [_packet(row) for row in ROWS]
    for message in (feeding.header(USERS), *rows, _packet(None)):
        feeding.publish(topic, *divided(message, size))

    async def check(client: Creek) -> None:
        changes = await take(client.stream_wal(DATABASE, "users"), 3)
        assert [wal.source.lsn for wal in changes] == ["0/1", "0/2", "0/3"]
        resumed = client.stream_wal(DATABASE, "users", start=changes[1].place)
        assert [wal.source.lsn for wal in await take(resumed, 1)] == ["0/3"]
        assert await rest(client.snapshot(DATABASE, "users")) == ROWS

    run_connected(feeding.url, check)


def test_a_header_that_arrives_in_parts(feeding: Producer) -> None:
    """GIVEN a client that has read half of a snapshot's header WHEN the rest arrives THEN it gets
    the rows."""
    topic = feeding.topic(USERS)
    first, *others = divided(feeding.header(USERS), 100)

    async def check(client: Creek) -> None:
        snapshot = client.snapshot(DATABASE, "users")
        feeding.publish(topic, first)
        header = asyncio.create_task(snapshot.begun())
        await asyncio.sleep(0.5)
        assert not header.done()
        feeding.publish(topic, *others, *(_packet(row) for row in (*ROWS, None)))
        assert (await header).topic == topic
        assert await rest(snapshot) == ROWS

    run_connected(feeding.url, check)


def _schema_packet(feeding: Producer, fingerprint: str) -> bytes:
    return creek.packet(feeding.schemas[fingerprint])


def _packet(row: dict[str, object] | None) -> bytes:
    """A row, or the end."""
    return creek.packet(creek.END if row is None else encode(creek.row(USERS, {}), row))
