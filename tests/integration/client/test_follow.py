"""Following a stream: where it starts, what is acknowledged, and what a cut line does to it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import nats
import orjson
import pytest
from nats.js.api import StreamConfig

from tailrace import client
from tailrace.client.replica import State
from tailrace.errors import (
    ConfigError,
    MalformedError,
    PositionLostError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.position import Lsn, Position
from tailrace.testing import EmbeddedNats, TcpProxy
from tailrace.testing.process import free_port
from tests.integration.client.messages import created, ids, sent

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nats.aio.msg import Msg


def run(what: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await what

    asyncio.run(bounded())


def test_where_it_starts(server: EmbeddedNats) -> None:
    async def consume() -> None:
        await created(server.url)
        await sent(server.url, range(1, 4))
        # Another table's, and a table of a schema of that name: neither is ours.
        await sent(server.url, [99], subject="cdc.orders.insert")
        await sent(server.url, [98], subject="cdc.users.orders.insert")
        async with client.connect(server.url) as found:
            assert await ids(found.follow("users", start="earliest"), 3) == [1, 2, 3]
            at = Position(Lsn(2))
            assert await ids(found.follow("users", start=at), 2) == [2, 3]
            ago = datetime.now(UTC) - timedelta(hours=1)
            assert await ids(found.follow("users", start=ago), 1) == [1]
            new = found.follow("users", start="new")
            waiting = asyncio.create_task(ids(new, 2))
            await asyncio.sleep(0.5)
            await sent(server.url, [4, 5])
            assert await waiting == [4, 5]
            for start in (datetime(2026, 1, 1), "sometime"):
                with pytest.raises(ConfigError):
                    await anext(found.follow("users", start=start))  # type: ignore[arg-type]

    run(consume())


def test_a_durable_name_remembers_what_was_acknowledged(server: EmbeddedNats) -> None:
    async def consume() -> None:
        await created(server.url)
        await sent(server.url, range(1, 11))
        async with client.connect(server.url) as found:
            follow = found.follow("users", start="earliest", durable="mine")
            assert await ids(follow, 4, ack=True) == [1, 2, 3, 4]
            # Out of order: 6 is done with, 5 is not.
            fifth, sixth = await anext(follow), await anext(follow)
            await sixth.ack()
            assert fifth.data == {"id": 5}
        async with client.connect(server.url) as found:
            follow = found.follow("users", durable="mine")
            assert await ids(follow, 5, ack=True) == [5, 7, 8, 9, 10]
            await sent(server.url, [11])
            assert await ids(follow, 1, ack=True) == [11]
            with pytest.raises(ConfigError, match="is for"):
                await anext(found.follow("orders", durable="mine"))

    run(consume())


def test_after_a_crash_what_was_not_acknowledged_comes_first(server: EmbeddedNats) -> None:
    """GIVEN a consumer that dies WHEN younger changes wait THEN the order is still the stream's."""

    async def consume() -> None:
        await created(server.url)
        await sent(server.url, range(1, 6))
        with TcpProxy("127.0.0.1", server.port) as proxy:
            url = f"nats://127.0.0.1:{proxy.port}"
            async with client.connect(url, ack_wait_s=2) as found:
                follow = found.follow("users", start="earliest", durable="mine")
                assert await ids(follow, 2, ack=True) == [1, 2]
                await asyncio.sleep(0.5)
                # A process that is killed hands nothing back.
                proxy.close()
        await sent(server.url, range(6, 9))
        async with client.connect(server.url) as found:
            follow = found.follow("users", durable="mine")
            assert await ids(follow, 6, ack=True) == [3, 4, 5, 6, 7, 8]

    run(consume())


@pytest.mark.parametrize("durable", [None, "mine"])
def test_waiting_may_be_given_up(server: EmbeddedNats, durable: str | None) -> None:
    async def consume() -> None:
        await created(server.url)
        async with client.connect(server.url) as found:
            follow = found.follow("users", start="earliest", durable=durable)
            seen = []
            for number in range(1, 30):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(follow), 0.01)
                await sent(server.url, [number])
                seen += await ids(follow, 1, ack=True)
            assert seen == list(range(1, 30))

    run(consume())


def test_nak_and_late_acks(server: EmbeddedNats) -> None:
    async def consume() -> None:
        await created(server.url)
        await sent(server.url, range(1, 4))
        async with client.connect(server.url, ack_wait_s=1) as found:
            follow = found.follow("users", start="earliest", durable="mine")
            first = await anext(follow)
            await first.nak()
            assert sorted(await ids(follow, 2)) == [2, 3]
            again = await anext(follow)
            assert again.id == first.id
            # The server sends 2 and 3 again and again meanwhile: nobody is shown them twice.
            await asyncio.sleep(3)
            await sent(server.url, [4])
            assert await ids(follow, 1) == [4]

    run(consume())


def test_a_message_that_is_in_the_stream_twice(server: EmbeddedNats) -> None:
    async def consume() -> None:
        await created(server.url)
        await sent(server.url, [1, 2, 1, 2, 3])
        async with client.connect(server.url) as found:
            assert await ids(found.follow("users", start="earliest"), 3) == [1, 2, 3]
            durable = found.follow("users", start="earliest", durable="mine")
            assert await ids(durable, 3, ack=True) == [1, 2, 3]

    run(consume())


@pytest.mark.parametrize("durable", [None, "mine"])
def test_the_server_comes_back(server: EmbeddedNats, durable: str | None) -> None:
    async def consume() -> None:
        await created(server.url)
        await sent(server.url, range(1, 4))
        async with client.connect(server.url, ack_wait_s=2) as found:
            follow = found.follow("users", start="earliest", durable=durable)
            assert await ids(follow, 3, ack=True) == [1, 2, 3]
            waiting = asyncio.create_task(ids(follow, 3, ack=True))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.start)
            await sent(server.url, range(4, 7))
            assert await waiting == [4, 5, 6]

    run(consume())


@pytest.mark.parametrize("durable", [None, "mine"])
def test_a_line_that_is_cut_again_and_again(server: EmbeddedNats, durable: str | None) -> None:
    count = 5000

    async def consume() -> None:
        await created(server.url)
        with TcpProxy("127.0.0.1", server.port) as proxy:
            url = f"nats://127.0.0.1:{proxy.port}"
            async with client.connect(url, ack_wait_s=2) as found:
                follow = found.follow("users", start="earliest", durable=durable)
                reading = asyncio.create_task(ids(follow, count, ack=True))
                for first in range(1, count, 500):
                    await sent(server.url, range(first, first + 500))
                    proxy.cut()
                assert await reading == list(range(1, count + 1))

    run(consume())


def test_what_is_wrong_has_a_name_and_a_way_out(server: EmbeddedNats) -> None:
    async def consume() -> None:
        async with client.connect(server.url) as found:
            for events in (found.follow("users"), found.replica("users")):
                with pytest.raises(SinkRefusedError, match="no stream 'CDC'") as refused:
                    await anext(events)
                assert "start it" in refused.value.hint
            with pytest.raises(SinkRefusedError, match="no bucket 'schemas'"):
                await found.schemas()
            with pytest.raises(SinkUnreachableError, match="nobody answers") as unacked:
                await anext(found.snapshot("users"))
            assert "tailrace run" in unacked.value.hint
            await created(server.url)
            js = (await nats.connect(server.url)).jetstream()
            await js.publish("cdc.users.insert", b"{}")
            with pytest.raises(MalformedError) as malformed:
                await anext(found.follow("users", start="earliest"))
            assert "bridge" in malformed.value.hint
            await js._nc.close()
        with pytest.raises(SinkUnreachableError, match="does not answer"):
            async with client.connect(f"nats://127.0.0.1:{free_port()}"):
                pass

    run(consume())


def test_a_snapshot_that_cannot_be_made_says_so(server: EmbeddedNats) -> None:
    async def consume() -> None:
        service = await nats.connect(server.url)
        js = service.jetstream()
        await js.add_stream(StreamConfig(name="INIT", subjects=["init.>"]))
        told = 0

        async def refuse(request: Msg) -> None:
            nonlocal told
            told += 1
            failed = {"snapshot_id": f"snap-{told}", "error": "no rights", "hint": "GRANT SELECT"}
            await request.respond(orjson.dumps({"snapshot_id": f"snap-{told}"}))
            await js.publish("init.meta.users", orjson.dumps(failed | {"code": "REFUSED"}))

        await service.subscribe("snapshot.request.users", cb=refuse)
        await service.flush()
        async with client.connect(server.url) as found:
            for _ in range(2):
                with pytest.raises(SinkRefusedError, match="no rights") as refused:
                    await anext(found.snapshot("users"))
                assert refused.value.hint == "GRANT SELECT"
        assert told == 2
        await service.close()

    run(consume())


def test_logins() -> None:
    async def consume(url: str) -> None:
        async with client.connect(url, user="u", password="p") as found:
            with pytest.raises(SinkRefusedError):
                await found.schemas()
        with pytest.raises(SinkRefusedError, match="login"):
            async with client.connect(url, user="u", password="wrong"):
                pass

    with EmbeddedNats(config="authorization { user: u, password: p }") as server:
        run(consume(server.url))


def test_a_state_whose_messages_are_gone(server: EmbeddedNats) -> None:
    async def consume() -> None:
        await created(server.url)
        await sent(server.url, range(1, 6))
        connection = await nats.connect(server.url)
        js = connection.jetstream()
        state = State(
            table="users",
            snapshot_id="snap-1",
            lsn="0/1",
            visibility="1:1:",
            since=None,
            stream=await _born(server.url),
            sequence=2,
        )
        async with client.connect(server.url) as found:
            assert await ids(found.replica("users", state=state), 3) == [3, 4, 5]
            await js.purge_stream("CDC", seq=4)
            with pytest.raises(PositionLostError, match="begins at message 4"):
                await anext(found.replica("users", state=state))
            with pytest.raises(PositionLostError, match="no consumer"):
                await anext(found.replica("users", state=state, durable="mine"))
            with pytest.raises(ConfigError):
                found.replica("orders", state=state)
            await js.delete_stream("CDC")
            await js.add_stream(StreamConfig(name="CDC", subjects=["cdc.>"]))
            with pytest.raises(PositionLostError, match="created anew"):
                await anext(found.replica("users", state=state))
        await connection.close()

    run(consume())


async def _born(url: str) -> str:
    async with client.connect(url) as found:
        info = await found._access.connection.stream_info("CDC")
        return str(info["created"])
