"""Following a stream: start positions, acknowledgements, and broken connections."""

from __future__ import annotations

import asyncio
import gc
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
from tests.integration.client.messages import create_stream, publish, take_ids, wait_for_consumer
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nats.aio.msg import Msg


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LONG_S):
            await test
        # nats-py leaves connections that broke to the garbage collector, which needs the loop.
        gc.collect()

    asyncio.run(bounded())


def test_start_positions(server: EmbeddedNats) -> None:
    async def consume() -> None:
        await create_stream(server.url)
        await publish(server.url, range(1, 4))
        # Another table, and a table of a schema with that name: neither matches.
        await publish(server.url, [99], subject="cdc.orders.insert")
        await publish(server.url, [98], subject="cdc.users.orders.insert")
        async with client.connect(server.url) as connected:
            assert await take_ids(connected.follow("users", start="earliest"), 3) == [1, 2, 3]
            at = Position(Lsn(2))
            assert await take_ids(connected.follow("users", start=at), 2) == [2, 3]
            ago = datetime.now(UTC) - timedelta(hours=1)
            assert await take_ids(connected.follow("users", start=ago), 1) == [1]
            new = connected.follow("users", start="new")
            waiting = asyncio.create_task(take_ids(new, 2))
            await wait_for_consumer(server.url, lambda info: info.config.opt_start_seq == 6)
            await publish(server.url, [4, 5])
            assert await waiting == [4, 5]
            # A pipeline that was reset after a restore continues at an earlier position.
            await publish(server.url, [1])
            assert await take_ids(connected.follow("users", start=at), 5) == [2, 3, 4, 5, 1]
            for start in (datetime(2026, 1, 1), "sometime"):
                with pytest.raises(ConfigError):
                    await anext(connected.follow("users", start=start))  # type: ignore[arg-type]

    run(consume())


def test_durable_name_remembers_acknowledgements(server: EmbeddedNats) -> None:
    async def consume() -> None:
        await create_stream(server.url)
        await publish(server.url, range(1, 11))
        async with client.connect(server.url) as connected:
            follow = connected.follow("users", start="earliest", durable="mine")
            assert await take_ids(follow, 4, ack=True) == [1, 2, 3, 4]
            # Out of order: 6 is acknowledged, 5 is not.
            fifth, sixth = await anext(follow), await anext(follow)
            await sixth.ack()
            assert fifth.data == {"id": 5}
        async with client.connect(server.url) as connected:
            follow = connected.follow("users", durable="mine")
            assert await take_ids(follow, 5, ack=True) == [5, 7, 8, 9, 10]
            await publish(server.url, [11])
            assert await take_ids(follow, 1, ack=True) == [11]
            with pytest.raises(ConfigError, match=r"reads cdc\.users"):
                await anext(connected.follow("orders", durable="mine"))

    run(consume())


def test_unacknowledged_changes_come_first_after_a_crash(server: EmbeddedNats) -> None:
    """GIVEN a consumer that dies WHEN newer changes are pending THEN the order is the stream's."""

    async def consume() -> None:
        await create_stream(server.url)
        await publish(server.url, range(1, 6))
        with TcpProxy("127.0.0.1", server.port) as proxy:
            url = f"nats://127.0.0.1:{proxy.port}"
            async with client.connect(url, ack_wait_s=2) as connected:
                follow = connected.follow("users", start="earliest", durable="mine")
                assert await take_ids(follow, 2, ack=True) == [1, 2]
                await wait_for_consumer(
                    server.url, lambda info: info.ack_floor and info.ack_floor.stream_seq == 2
                )
                # A process that is killed rejects nothing.
                proxy.close()
        await publish(server.url, range(6, 9))
        async with client.connect(server.url) as connected:
            follow = connected.follow("users", durable="mine")
            assert await take_ids(follow, 6, ack=True) == [3, 4, 5, 6, 7, 8]

    run(consume())


@pytest.mark.parametrize("durable", [None, "mine"])
def test_cancelled_wait_loses_nothing(server: EmbeddedNats, durable: str | None) -> None:
    async def consume() -> None:
        await create_stream(server.url)
        async with client.connect(server.url) as connected:
            follow = connected.follow("users", start="earliest", durable=durable)
            seen = []
            for number in range(1, 30):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(follow), 0.01)
                await publish(server.url, [number])
                seen += await take_ids(follow, 1, ack=True)
            assert seen == list(range(1, 30))

    run(consume())


def test_nak_and_late_acks(server: EmbeddedNats) -> None:
    async def consume() -> None:
        await create_stream(server.url)
        await publish(server.url, range(1, 4))
        async with client.connect(server.url, ack_wait_s=1) as connected:
            follow = connected.follow("users", start="earliest", durable="mine")
            first = await anext(follow)
            await first.nak()
            assert sorted(await take_ids(follow, 2)) == [2, 3]
            again = await anext(follow)
            assert again.id == first.id
            # JetStream redelivers 2 and 3 meanwhile: the caller does not get them twice.
            await wait_for_consumer(server.url, lambda info: (info.num_redelivered or 0) >= 2)
            await publish(server.url, [4])
            assert await take_ids(follow, 1) == [4]

    run(consume())


def test_change_that_is_in_the_stream_twice_is_delivered_once(server: EmbeddedNats) -> None:
    async def consume() -> None:
        await create_stream(server.url)
        await publish(server.url, [1, 2, 1, 2, 3])
        async with client.connect(server.url) as connected:
            assert await take_ids(connected.follow("users", start="earliest"), 3) == [1, 2, 3]
            durable = connected.follow("users", start="earliest", durable="mine")
            assert await take_ids(durable, 3, ack=True) == [1, 2, 3]

    run(consume())


@pytest.mark.parametrize("durable", [None, "mine"])
def test_follow_resumes_after_a_server_restart(server: EmbeddedNats, durable: str | None) -> None:
    async def consume() -> None:
        await create_stream(server.url)
        await publish(server.url, range(1, 4))
        async with client.connect(server.url, ack_wait_s=2) as connected:
            follow = connected.follow("users", start="earliest", durable=durable)
            assert await take_ids(follow, 3, ack=True) == [1, 2, 3]
            waiting = asyncio.create_task(take_ids(follow, 3, ack=True))
            await wait_for_consumer(server.url, lambda info: not info.num_ack_pending)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await publish(server.url, range(4, 7))
            assert await waiting == [4, 5, 6]

    run(consume())


@pytest.mark.parametrize("durable", [None, "mine"])
def test_follow_survives_repeated_disconnects(server: EmbeddedNats, durable: str | None) -> None:
    count = 5000

    async def consume() -> None:
        await create_stream(server.url)
        with TcpProxy("127.0.0.1", server.port) as proxy:
            url = f"nats://127.0.0.1:{proxy.port}"
            async with client.connect(url, ack_wait_s=2) as connected:
                follow = connected.follow("users", start="earliest", durable=durable)
                reading = asyncio.create_task(take_ids(follow, count, ack=True))
                for first in range(1, count, 500):
                    await publish(server.url, range(first, first + 500))
                    proxy.cut()
                assert await reading == list(range(1, count + 1))

    run(consume())


def test_broken_logins_and_a_failed_last_flush_leave_nothing_open(
    server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run` collects garbage: a socket or a subscription that was left open is an error."""
    closed: list[object] = []

    async def break_off() -> None:
        closed.append(True)
        raise ConnectionResetError

    async def consume() -> None:
        await create_stream(server.url)
        await publish(server.url, [1])
        with TcpProxy("127.0.0.1", server.port) as proxy:
            url = f"nats://127.0.0.1:{proxy.port}"
            async with client.connect(url) as connected:
                follow = connected.follow("users", start="earliest")
                assert await take_ids(follow, 1) == [1]
                reading = asyncio.create_task(take_ids(follow, 1))
                proxy.black_hole()
                for _ in range(5):
                    proxy.cut()
                    await asyncio.sleep(0.3)
                proxy.heal()
                await publish(server.url, [2])
                assert await reading == [2]
                nc = connected._access.connection.client
                monkeypatch.setattr(nc._transport, "drain", break_off)
                monkeypatch.setattr(nc, "_pending", [b"PING\r\n"])
                monkeypatch.setattr(nc, "_pending_data_size", 6)
        assert closed
        assert not nc._subs

    run(consume())


def test_errors_have_hints(server: EmbeddedNats) -> None:
    async def consume() -> None:
        async with client.connect(server.url) as connected:
            for events in (connected.follow("users"), connected.replica("users")):
                with pytest.raises(SinkRefusedError, match="no stream 'CDC'") as refused:
                    await anext(events)
                assert "start it" in refused.value.hint
            with pytest.raises(SinkRefusedError, match="no bucket 'schemas'"):
                await connected.schemas()
            with pytest.raises(SinkUnreachableError, match="no pipeline answers") as unanswered:
                await anext(connected.snapshot("users"))
            assert "tailrace run" in unanswered.value.hint
            await create_stream(server.url)
            js = (await nats.connect(server.url)).jetstream(timeout=60)
            await js.publish("cdc.users.insert", b"{}")
            with pytest.raises(MalformedError) as malformed:
                await anext(connected.follow("users", start="earliest"))
            assert "bridge" in malformed.value.hint
            await js._nc.close()
        with pytest.raises(SinkUnreachableError, match="does not answer"):
            async with client.connect(f"nats://127.0.0.1:{free_port()}"):
                pass

    run(consume())


def test_failure_of_the_snapshot_service_is_raised(server: EmbeddedNats) -> None:
    async def consume() -> None:
        service = await nats.connect(server.url)
        js = service.jetstream(timeout=60)
        await js.add_stream(StreamConfig(name="INIT", subjects=["init.>"]))
        requests = 0

        async def refuse(request: Msg) -> None:
            nonlocal requests
            requests += 1
            failed = {
                "snapshot_id": f"snap-{requests}",
                "error": "no rights",
                "hint": "GRANT SELECT",
            }
            await request.respond(orjson.dumps({"snapshot_id": f"snap-{requests}"}))
            await js.publish("init.meta.users", orjson.dumps(failed | {"code": "REFUSED"}))

        await service.subscribe("snapshot.request.users", cb=refuse)
        await service.flush()
        async with client.connect(server.url) as connected:
            for _ in range(2):
                with pytest.raises(SinkRefusedError, match="no rights") as refused:
                    await anext(connected.snapshot("users"))
                assert refused.value.hint == "GRANT SELECT"
        assert requests == 2
        await service.close()

    run(consume())


def test_login_is_accepted_or_refused() -> None:
    async def consume(url: str) -> None:
        async with client.connect(url, user="u", password="p") as connected:
            with pytest.raises(SinkRefusedError):
                await connected.schemas()
        with pytest.raises(SinkRefusedError, match="login"):
            async with client.connect(url, user="u", password="wrong"):
                pass

    with EmbeddedNats(config="authorization { user: u, password: p }") as server:
        run(consume(server.url))


def test_state_of_removed_messages_is_position_lost(server: EmbeddedNats) -> None:
    async def consume() -> None:
        await create_stream(server.url)
        await publish(server.url, range(1, 6))
        connection = await nats.connect(server.url)
        js = connection.jetstream(timeout=60)
        state = State(
            table="users",
            snapshot_id="snap-1",
            lsn="0/1",
            visibility="1:1:",
            since=None,
            stream=await _stream_created(server.url),
            sequence=2,
        )
        async with client.connect(server.url) as connected:
            assert await take_ids(connected.replica("users", state=state), 3) == [3, 4, 5]
            await js.purge_stream("CDC", seq=4)
            with pytest.raises(PositionLostError, match="begins at message 4"):
                await anext(connected.replica("users", state=state))
            with pytest.raises(PositionLostError, match="no consumer"):
                await anext(connected.replica("users", state=state, durable="mine"))
            with pytest.raises(ConfigError):
                connected.replica("orders", state=state)
            await js.delete_stream("CDC")
            await js.add_stream(StreamConfig(name="CDC", subjects=["cdc.>"]))
            with pytest.raises(PositionLostError, match="created again"):
                await anext(connected.replica("users", state=state))
        await connection.close()

    run(consume())


async def _stream_created(url: str) -> str:
    async with client.connect(url) as connected:
        info = await connected._access.connection.stream_info("CDC")
        return str(info["created"])
