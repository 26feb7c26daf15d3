"""Changes: from where on, in which order, by which schema, whatever the server does."""

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
from tests.integration.creek.client.calls import connected, taken
from tests.integration.creek.client.producer import AT, DATABASE, TEXT, USERS, event, relation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tailrace.testing import EmbeddedNats
    from tests.integration.creek.client.producer import Producer


def added(number: int) -> bytes:
    """The insert of a row, at the LSN of its number."""
    return event(USERS, "c", after={"id": number, "name": f"n{number}"}, lsn=number)


async def numbers(stream: AsyncIterator[Any], count: int) -> list[int]:
    return [wal.after["id"] for wal in await taken(stream, count)]


def test_a_change_has_the_fields_of_the_go_client(feeding: Producer) -> None:
    feeding.wal(
        USERS,
        added(16),
        event(USERS, "u", before={"id": 16}, after={"id": 16, "name": None}, lsn=17, xid=9),
        event(USERS, "u_pk", before={"id": 16}, after={"id": 17, "name": "x"}, lsn=18),
        event(
            USERS, "u", before={"id": 17}, after={"id": 17, "name": None}, unchanged=["name"],
        ),
        event(USERS, "d", before={"id": 17}, lsn=19),
        event(USERS, "t", lsn=20),
    )  # fmt: skip

    async def check(client: Creek) -> None:
        found = await taken(client.stream_wal(DATABASE, "public.users"), 6)
        first = found[0]
        assert first.fingerprint == feeding.know(USERS)
        assert first.source == creek.Source(
            name="test", tx_at=AT, db=DATABASE, schema="public", table="users",
            tx_id=1, last_lsn="0/0", lsn="0/10",
        )  # fmt: skip
        assert (first.op, first.sent_at, first.before) == ("c", AT, None)
        assert first.after == {"id": 16, "name": "n16"}
        assert [wal.op for wal in found] == ["c", "u", "u_pk", "u", "d", "t"]
        assert [wal.before for wal in found[1:]] == [
            {"id": 16}, {"id": 16}, {"id": 17}, {"id": 17}, None,
        ]  # fmt: skip
        assert [wal.after for wal in found[4:]] == [None, None]
        assert found[3].unchanged == ("name",)
        assert found[3].fingerprint == feeding.know(USERS, partial=True)
        assert [wal.place for wal in found] == [1, 2, 3, 4, 5, 6]

    connected(feeding.url, check)


def test_where_it_starts(feeding: Producer) -> None:
    """A time and an LSN leave out the first ones up to the LSN, and those alone."""
    feeding.wal(USERS, *(added(number) for number in (5, 6, 7, 3, 8)))
    long_ago = datetime.now(UTC) - timedelta(hours=1)

    async def check(client: Creek) -> None:
        stream = client.stream_wal
        assert await numbers(stream(DATABASE, "users"), 5) == [5, 6, 7, 3, 8]
        assert await numbers(stream(DATABASE, "users", start=(long_ago, "0/6")), 3) == [7, 3, 8]
        assert await numbers(stream(DATABASE, "users", start=4), 1) == [8]
        later = stream(DATABASE, "users", start=(datetime.now(UTC), "0/0"))
        waiting = asyncio.ensure_future(numbers(later, 1))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(feeding.wal, USERS, added(9))
        assert await waiting == [9]
        for wrong in ((datetime(2026, 1, 1), "0/0"), (long_ago, "nowhere"), "new"):
            with pytest.raises(ConfigError):
                stream(DATABASE, "users", start=wrong)  # type: ignore[arg-type]

    connected(feeding.url, check)


def test_what_the_stream_has_let_go_of_is_said(feeding: Producer) -> None:
    feeding.wal(USERS, *(added(number) for number in range(1, 6)))

    async def check(client: Creek) -> None:
        jetstream = client._session.connection.jetstream
        await jetstream.purge_stream("CREEK_wal", keep=2)
        with pytest.raises(PositionLostError):
            await taken(client.stream_wal(DATABASE, "users", start=1), 1)
        config = (await jetstream.stream_info("CREEK_wal")).config
        await jetstream.update_stream(config.evolve(max_msgs=2))
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        with pytest.raises(PositionLostError):
            await taken(client.stream_wal(DATABASE, "users", start=(long_ago, "0/1")), 1)
        assert await numbers(client.stream_wal(DATABASE, "users", start=3), 2) == [4, 5]

    connected(feeding.url, check)


def test_each_change_is_read_by_the_schema_it_names(feeding: Producer) -> None:
    """GIVEN changes before and after a column was added WHEN they are read THEN each is whole; and
    a schema that was published needs nobody to answer for it."""
    wider = relation("users", *USERS.columns, Column(name="more", type_oid=TEXT))
    feeding.publish_schema(wider)
    feeding.wal(USERS, added(1))
    feeding.wal(wider, event(wider, "c", after={"id": 2, "name": None, "more": "x"}, lsn=2))
    del feeding.schemas[feeding.know(wider)]

    async def check(client: Creek) -> None:
        found = await taken(client.stream_wal(DATABASE, "users"), 2)
        assert [wal.after for wal in found] == [
            {"id": 1, "name": "n1"},
            {"id": 2, "name": None, "more": "x"},
        ]
        last = await client.last_schema(DATABASE, "users")
        assert last is not None
        assert (last.fingerprint, last.source, last.created_at) == (
            found[1].fingerprint, "public.users", AT,
        )  # fmt: skip
        first = await client.get_schema(found[0].fingerprint)
        assert '"more"' in last.schema
        assert '"more"' not in first.schema
        assert await client.last_schema(DATABASE, "other") is None
        assert await client.databases() == [DATABASE]
        with pytest.raises(UnknownSchemaError):
            await client.get_schema("AAAAAAAAAAA=")

    connected(feeding.url, check)


def test_a_schema_that_nobody_has_yet_is_waited_for(feeding: Producer) -> None:
    """GIVEN changes of a schema that no producer knows WHEN one does later THEN nothing is left
    out; and if none ever does, that is an error, and not a gap."""
    feeding.wal(USERS, added(1), added(2))
    feeding.schemas.clear()

    async def check(client: Creek) -> None:
        stream = client.stream_wal(DATABASE, "users")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 1)
        feeding.know(USERS)
        assert await numbers(stream, 2) == [1, 2]

    connected(feeding.url, check)
    feeding.schemas.clear()

    async def never(client: Creek) -> None:
        with pytest.raises(UnknownSchemaError):
            await taken(client.stream_wal(DATABASE, "users"), 1)

    connected(feeding.url, never, patience_s=0.7)


def test_the_server_dies_under_a_reader(feeding: Producer, server: EmbeddedNats) -> None:
    """GIVEN a reader WHEN the server is killed and started, again and again THEN it has every
    change once and in order."""
    feeding.wal(USERS, *(added(number) for number in range(1, 101)))

    async def check(client: Creek) -> None:
        stream = client.stream_wal(DATABASE, "users")
        found = await numbers(stream, 50)
        for first in (101, 201, 301):
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            more = [added(number) for number in range(first, first + 100)]
            await asyncio.to_thread(feeding.wal, USERS, *more)
            found += await numbers(stream, 100)
        found += await numbers(stream, 50)
        assert found == list(range(1, 401))

    connected(server.url, check)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0\0\0\0\0\x09nonsense",
        packet(b"nonsense"),
        packet(b"\xc3\x01" + bytes(7)),
        added(1)[:-1],
        packet(added(1)[6:-1]),
        packet(added(1)[6:] + b"\0"),
    ],
)
def test_what_is_no_change_stops_the_reader(feeding: Producer, payload: bytes) -> None:
    feeding.wal(USERS, payload, added(1))

    async def check(client: Creek) -> None:
        with pytest.raises(MalformedError):
            await taken(client.stream_wal(DATABASE, "users"), 1)

    connected(feeding.url, check)


def test_what_is_wrong_is_said_at_once(feeding: Producer) -> None:
    async def check(url: str, **options: Any) -> None:
        async with creek.connect(url, **options):
            pass

    with pytest.raises(SinkRefusedError, match="OTHER_wal") as caught:
        asyncio.run(check(feeding.url, namespace="OTHER"))
    assert "namespace" in caught.value.hint
    with pytest.raises(SinkUnreachableError):
        asyncio.run(check("nats://127.0.0.1:1"))
