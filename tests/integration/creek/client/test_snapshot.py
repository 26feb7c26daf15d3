"""Snapshots: requested, read while they grow, and read again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.client.creek import Creek, SnapshotFailedError
from tailrace.encode.creek import schema as wire
from tailrace.errors import (
    ConfigError,
    MalformedError,
    PositionLostError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.schema import Column
from tests.integration.creek.client.calls import rest, run_connected
from tests.integration.creek.client.producer import (
    AT,
    DATABASE,
    INT,
    USERS,
    Producer,
    encode,
    relation,
)

if TYPE_CHECKING:
    from tailrace.testing import EmbeddedNats

ROWS: list[dict[str, Any]] = [{"id": 1, "name": "Ada"}, {"id": 2, "name": None}]


def test_snapshot_has_a_header_and_rows(feeding: Producer) -> None:
    topic = feeding.snapshot(USERS, ROWS, visibility="7:7:", since=AT.isoformat())

    async def check(client: Creek) -> None:
        snapshot = client.snapshot(DATABASE, "public.users")
        header = await snapshot.begun()
        assert await rest(snapshot) == ROWS
        assert snapshot.header == header
        assert snapshot.keys == ("id",)
        schema = wire.row(USERS, {})
        assert (header.fingerprint, header.schema) == (schema.name, schema.text)
        assert (header.tx_id, header.lsn, header.at) == (7, "0/10", AT)
        assert (header.approx_rows, header.topic) == (2, topic)
        assert (header.visibility, header.since) == ("7:7:", AT)
        request = {"database": DATABASE, "namespace": "public", "table": "users"}
        assert feeding.requests == [request]
        # Read again, without a request.
        assert await rest(client.get_snapshot(topic)) == ROWS
        assert feeding.requests == [request]

    run_connected(feeding.url, check)


def test_header_of_creek_itself_and_an_empty_table(feeding: Producer) -> None:
    feeding.snapshot(USERS, [])

    async def check(client: Creek) -> None:
        snapshot = client.snapshot(DATABASE, "users")
        assert await rest(snapshot) == []
        assert snapshot.header is not None
        assert (snapshot.header.visibility, snapshot.header.since) == (None, None)

    run_connected(feeding.url, check)


def test_rows_are_delivered_while_the_snapshot_grows(
    feeding: Producer, server: EmbeddedNats
) -> None:
    """GIVEN a snapshot without messages WHEN it grows, and the server is killed and restarted
    THEN each row is delivered once, in order, and then the end."""
    topic = feeding.topic(USERS)
    rows = [{"id": number, "name": "x"} for number in range(3000)]
    packets = [wire.packet(encode(wire.row(USERS, {}), row)) for row in rows]

    async def check(client: Creek) -> None:
        snapshot = client.snapshot(DATABASE, "users")
        reading = asyncio.ensure_future(rest(snapshot))
        await asyncio.to_thread(feeding.publish, topic, feeding.header(USERS), *packets[:1500])
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(feeding.publish, topic, *packets[1500:], wire.packet(wire.END))
        assert await reading == rows

    run_connected(feeding.url, check)


def test_row_with_the_bytes_of_the_end(feeding: Producer) -> None:
    """GIVEN a row with the three bytes of the end WHEN the snapshot is read THEN it is a row."""
    columns = [Column(name=name, type_oid=INT, key=True) for name in ("a", "b", "c")]
    table = relation("odd", *columns)
    rows = [{"a": -35, "b": -40, "c": 35}, {"a": 1, "b": 1, "c": 1}, {"a": -35, "b": -40, "c": 35}]
    assert encode(wire.row(table, {}), rows[0]) == wire.END
    feeding.snapshot(table, rows)

    async def check(client: Creek) -> None:
        assert await rest(client.snapshot(DATABASE, "odd")) == rows

    run_connected(feeding.url, check)


def test_list_snapshots(feeding: Producer) -> None:
    other = relation("users_2")
    topics = [feeding.snapshot(USERS, ROWS) for _ in range(3)]
    feeding.snapshot(other, ROWS)

    async def check(client: Creek) -> None:
        snapshots = await client.list_snapshots(DATABASE, "users")
        assert [snapshot.topic for snapshot in snapshots] == topics
        assert {snapshot.at for snapshot in snapshots} == {AT}
        assert [snapshot.messages for snapshot in snapshots] == [4, 4, 4]
        assert await client.list_snapshots(DATABASE, "nothing") == []

    run_connected(feeding.url, check)


def test_refusals_of_a_producer(feeding: Producer) -> None:
    feeding.refusal = "404", {"error": "no table x", "code": "BAD_CONFIG", "hint": "there is y"}

    async def check(client: Creek) -> None:
        with pytest.raises(ConfigError, match="no table x") as caught:
            await rest(client.snapshot(DATABASE, "x"))
        assert caught.value.hint == "there is y"
        feeding.refusal = "400", {"error": "PostgreSQL is away", "code": "UNREACHABLE", "hint": ""}
        with pytest.raises(SinkRefusedError, match="PostgreSQL is away"):
            await rest(client.snapshot(DATABASE, "x"))
        feeding.refusal, feeding.topics = None, ["what?"]
        with pytest.raises(SinkRefusedError, match=r"what\?"):
            await rest(client.snapshot(DATABASE, "x"))
        with pytest.raises(ConfigError, match="no snapshot"):
            await rest(client.get_snapshot("CREEK.shop.snap.public.users.nothing"))

    run_connected(feeding.url, check)


def test_incomplete_snapshots_are_errors(feeding: Producer) -> None:
    """GIVEN snapshots that fail, that stop, or have lost their beginning WHEN they are read THEN
    each raises its own error, and none looks like an end."""
    topic = feeding.topic(USERS)
    feeding.publish(topic, feeding.header(USERS))
    failure = wire.packet(b'{"error": "the session is gone", "code": "x", "hint": "again"}')
    feeding.publish(topic, failure, headers={"Tailrace-Error": "the session is gone"})

    async def check(client: Creek) -> None:
        with pytest.raises(SnapshotFailedError, match="the session is gone") as caught:
            await rest(client.get_snapshot(topic))
        assert caught.value.hint == "again"
        cut = feeding.topic(USERS)
        row = wire.packet(encode(wire.row(USERS, {}), ROWS[0]))
        await asyncio.to_thread(feeding.publish, cut, row, wire.packet(wire.END))
        with pytest.raises(PositionLostError, match="beginning"):
            await rest(client.get_snapshot(cut))
        odd = feeding.topic(USERS)
        await asyncio.to_thread(feeding.publish, odd, feeding.header(USERS), wire.packet(b"?"))
        with pytest.raises(MalformedError):
            await rest(client.get_snapshot(odd))

    run_connected(feeding.url, check)


def test_a_snapshot_that_sends_no_rows(feeding: Producer) -> None:
    async def check(client: Creek) -> None:
        silent = feeding.topic(USERS)
        await asyncio.to_thread(feeding.publish, silent, feeding.header(USERS))
        with pytest.raises(SinkUnreachableError, match="has sent no rows"):
            await rest(client.get_snapshot(silent))

    run_connected(feeding.url, check, patience_s=1.0)


def test_request_is_repeated_while_a_snapshot_sends_nothing(feeding: Producer) -> None:
    """GIVEN a snapshot that sends nothing WHEN the producer answers the repeated request with the
    same topic THEN the client waits; WHEN it answers with another topic THEN that is an error."""
    topic = feeding.topic(USERS)

    async def check(client: Creek) -> None:
        reading = asyncio.ensure_future(rest(client.snapshot(DATABASE, "users")))
        while len(feeding.requests) < 3:
            await asyncio.sleep(0.05)
        packets = [wire.packet(encode(wire.row(USERS, {}), row)) for row in ROWS]
        await asyncio.to_thread(
            feeding.publish, topic, feeding.header(USERS), *packets, wire.packet(wire.END)
        )
        assert await reading == ROWS
        feeding.topics = [feeding.topic(USERS), feeding.topic(USERS)]
        with pytest.raises(SnapshotFailedError, match="the producer now takes"):
            await rest(client.snapshot(DATABASE, "users"))

    run_connected(feeding.url, check, patience_s=0.3)


def test_no_producer_answers(server: EmbeddedNats) -> None:
    with Producer(server) as gone:
        assert gone.url == server.url

    async def check(client: Creek) -> None:
        with pytest.raises(SinkUnreachableError, match="no producer answers"):
            await rest(client.snapshot(DATABASE, "users"))
        with pytest.raises(SinkUnreachableError, match="no producer answers"):
            await client.get_schema("AAAAAAAAAAA=")

    run_connected(server.url, check)
