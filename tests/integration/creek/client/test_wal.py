"""Changes: start positions, order, schemas, and restarts of the server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.client import creek
from tailrace.client.creek import Creek, UnknownSchemaError
from tailrace.encode.creek.schema import packet
from tailrace.errors import (
    ConfigError,
    MalformedError,
    PositionLostError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.schema import Column
from tests.integration.creek.client.calls import run_connected, take
from tests.integration.creek.client.producer import AT, DATABASE, TEXT, USERS, event, relation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tailrace.testing import EmbeddedNats
    from tests.integration.creek.client.producer import Producer


def insert(number: int) -> bytes:
    """The insert of a row with this id, at this LSN."""
    return event(USERS, "c", after={"id": number, "name": f"n{number}"}, lsn=number)


async def take_ids(stream: AsyncIterator[Any], count: int) -> list[int]:
    return [wal.after["id"] for wal in await take(stream, count)]


def test_change_has_the_fields_of_the_go_client(feeding: Producer) -> None:
    feeding.wal(
        USERS,
        insert(16),
        event(USERS, "u", before={"id": 16}, after={"id": 16, "name": None}, lsn=17, xid=9),
        event(USERS, "u_pk", before={"id": 16}, after={"id": 17, "name": "x"}, lsn=18),
        event(
            USERS, "u", before={"id": 17}, after={"id": 17, "name": None}, unchanged=["name"],
        ),
        event(USERS, "d", before={"id": 17}, lsn=19),
        event(USERS, "t", lsn=20),
    )  # fmt: skip

    async def check(client: Creek) -> None:
        changes = await take(client.stream_wal(DATABASE, "public.users"), 6)
        first = changes[0]
        assert first.fingerprint == feeding.serve_schema(USERS)
        assert first.source == creek.WalSource(
            name="test", tx_at=AT, db=DATABASE, schema="public", table="users",
            tx_id=1, last_lsn="0/0", lsn="0/10",
        )  # fmt: skip
        assert (first.op, first.sent_at, first.before) == ("c", AT, None)
        assert first.after == {"id": 16, "name": "n16"}
        assert [wal.op for wal in changes] == ["c", "u", "u_pk", "u", "d", "t"]
        assert [wal.before for wal in changes[1:]] == [
            {"id": 16}, {"id": 16}, {"id": 17}, {"id": 17}, None,
        ]  # fmt: skip
        assert [wal.after for wal in changes[4:]] == [None, None]
        assert changes[3].unchanged == ("name",)
        assert changes[3].fingerprint == feeding.serve_schema(USERS, partial=True)
        assert [wal.place for wal in changes] == [1, 2, 3, 4, 5, 6]

    run_connected(feeding.url, check)


def test_start_positions(feeding: Producer) -> None:
    """A time and an LSN skip the leading changes up to the LSN, and no later ones."""
    feeding.wal(USERS, *(insert(number) for number in (5, 6, 7, 3, 8)))
    long_ago = datetime.now(UTC) - timedelta(hours=1)

    async def check(client: Creek) -> None:
        stream = client.stream_wal
        assert await take_ids(stream(DATABASE, "users"), 5) == [5, 6, 7, 3, 8]
        assert await take_ids(stream(DATABASE, "users", start=(long_ago, "0/6")), 3) == [7, 3, 8]
        assert await take_ids(stream(DATABASE, "users", start=4), 1) == [8]
        later = stream(DATABASE, "users", start=(datetime.now(UTC), "0/0"))
        waiting = asyncio.ensure_future(take_ids(later, 1))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(feeding.wal, USERS, insert(9))
        assert await waiting == [9]
        for wrong in ((datetime(2026, 1, 1), "0/0"), (long_ago, "nowhere"), "new"):
            with pytest.raises(ConfigError):
                stream(DATABASE, "users", start=wrong)  # type: ignore[arg-type]

    run_connected(feeding.url, check)


def test_removed_messages_are_position_lost(feeding: Producer) -> None:
    feeding.wal(USERS, *(insert(number) for number in range(1, 6)))

    async def check(client: Creek) -> None:
        jetstream = client._session.connection.jetstream
        await jetstream.purge_stream("CREEK_wal", keep=2)
        with pytest.raises(PositionLostError):
            await take(client.stream_wal(DATABASE, "users", start=1), 1)
        config = (await jetstream.stream_info("CREEK_wal")).config
        await jetstream.update_stream(config.evolve(max_msgs=2))
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        with pytest.raises(PositionLostError):
            await take(client.stream_wal(DATABASE, "users", start=(long_ago, "0/1")), 1)
        assert await take_ids(client.stream_wal(DATABASE, "users", start=3), 2) == [4, 5]

    run_connected(feeding.url, check)


def test_each_change_is_decoded_by_the_schema_that_it_names(feeding: Producer) -> None:
    """GIVEN changes before and after a column was added WHEN they are read THEN each has its own
    columns; a published schema needs no producer."""
    wider = relation("users", *USERS.columns, Column(name="more", type_oid=TEXT))
    feeding.publish_schema(wider)
    feeding.wal(USERS, insert(1))
    feeding.wal(wider, event(wider, "c", after={"id": 2, "name": None, "more": "x"}, lsn=2))
    del feeding.schemas[feeding.serve_schema(wider)]

    async def check(client: Creek) -> None:
        changes = await take(client.stream_wal(DATABASE, "users"), 2)
        assert [wal.after for wal in changes] == [
            {"id": 1, "name": "n1"},
            {"id": 2, "name": None, "more": "x"},
        ]
        last = await client.last_schema(DATABASE, "users")
        assert last is not None
        assert (last.fingerprint, last.source, last.created_at) == (
            changes[1].fingerprint, "public.users", AT,
        )  # fmt: skip
        first = await client.get_schema(changes[0].fingerprint)
        assert '"more"' in last.schema
        assert '"more"' not in first.schema
        assert await client.last_schema(DATABASE, "other") is None
        assert await client.databases() == [DATABASE]
        with pytest.raises(UnknownSchemaError):
            await client.get_schema("AAAAAAAAAAA=")

    run_connected(feeding.url, check)


def test_client_waits_for_an_unknown_schema(feeding: Producer) -> None:
    """GIVEN changes of an unknown schema WHEN a producer has it later THEN no change is skipped;
    if no producer ever has it, that is an error."""
    feeding.wal(USERS, insert(1), insert(2))
    feeding.schemas.clear()

    async def check(client: Creek) -> None:
        stream = client.stream_wal(DATABASE, "users")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 1)
        feeding.serve_schema(USERS)
        assert await take_ids(stream, 2) == [1, 2]

    run_connected(feeding.url, check)
    feeding.schemas.clear()

    async def never(client: Creek) -> None:
        with pytest.raises(UnknownSchemaError):
            await take(client.stream_wal(DATABASE, "users"), 1)

    run_connected(feeding.url, never, patience_s=0.7)


def test_reader_survives_restarts_of_the_server(feeding: Producer, server: EmbeddedNats) -> None:
    """GIVEN a reader WHEN the server is killed and restarted repeatedly THEN it gets every change
    once and in order."""
    feeding.wal(USERS, *(insert(number) for number in range(1, 101)))

    async def check(client: Creek) -> None:
        stream = client.stream_wal(DATABASE, "users")
        ids = await take_ids(stream, 50)
        for first in (101, 201, 301):
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            more = [insert(number) for number in range(first, first + 100)]
            await asyncio.to_thread(feeding.wal, USERS, *more)
            ids += await take_ids(stream, 100)
        ids += await take_ids(stream, 50)
        assert ids == list(range(1, 401))

    run_connected(server.url, check)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0\0\0\0\0\x07nonsense",
        packet(b"nonsense"),
        packet(b"\xc3\x01" + bytes(7)),
        packet(insert(1)[6:-1]),
        packet(insert(1)[6:] + b"\0"),
    ],
)
def test_invalid_message_is_malformed(feeding: Producer, payload: bytes) -> None:
    feeding.wal(USERS, payload, insert(1))

    async def check(client: Creek) -> None:
        with pytest.raises(MalformedError):
            await take(client.stream_wal(DATABASE, "users"), 1)

    run_connected(feeding.url, check)


def test_first_packet_without_the_others_is_dropped(feeding: Producer) -> None:
    """GIVEN a producer that stopped in a divided message, and sent it again as a whole."""
    feeding.wal(USERS, insert(1)[:-1], insert(1), insert(2))

    async def check(client: Creek) -> None:
        assert await take_ids(client.stream_wal(DATABASE, "users"), 2) == [1, 2]

    run_connected(feeding.url, check)


def test_connect_fails_at_once(feeding: Producer) -> None:
    async def check(url: str, **options: Any) -> None:
        async with creek.connect(url, **options):
            pass

    with pytest.raises(SinkRefusedError, match="OTHER_wal") as caught:
        asyncio.run(check(feeding.url, namespace="OTHER"))
    assert "namespace" in caught.value.hint
    with pytest.raises(SinkUnreachableError):
        asyncio.run(check("nats://127.0.0.1:1"))
