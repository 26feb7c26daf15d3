"""What iterating over pulled messages asks of the server, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpcore
import orjson

from tailrace.client.consumer import PullConsumer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

VISIBLE_S = 30.0


class Server:
    """Delivers numbered messages once, for 30 seconds by its own clock."""

    def __init__(self, count: int) -> None:
        self.now_s = 100.0
        self.ends_s = dict.fromkeys(map(str, range(count)), 0.0)
        """The deliveries, and when they end."""
        self.waiting = list(self.ends_s)
        self.requests: list[tuple[str, list[str]]] = []
        self.given_back: list[str] = []
        """Deliveries that do not count."""
        self.reachable = True

    async def request(self, _method: str, url: str, *, content: bytes, **_: Any) -> Any:
        action, body = url.rpartition("/")[2], orjson.loads(content)
        self.requests.append((action, body.get("ack_ids", [])))
        if not self.reachable:
            raise httpcore.ConnectError("refused")
        answer = self.receive() if action == "receive" else self.change(action, body)
        return SimpleNamespace(status=200, content=orjson.dumps(answer))

    def receive(self) -> Any:
        found, self.waiting = self.waiting, []
        self.ends_s |= dict.fromkeys(found, self.now_s + VISIBLE_S)
        fields = {"destination": "t", "key": None, "position": "0/1.0", "committed_at": ""}
        messages = [{"ack_id": each, "id": each, "deliveries": 1, **fields} for each in found]
        return {"messages": messages, "visible_ms": int(VISIBLE_S * 1000)}

    def change(self, action: str, body: Any) -> Any:
        expired = [each for each in body["ack_ids"] if self.ended(each)]
        end_s = self.now_s + body["visibility_ms"] / 1000 if action == "extend" else 0.0
        if body.get("counts") is False:
            self.given_back += body["ack_ids"]
        self.ends_s |= {each: end_s for each in body["ack_ids"] if each not in expired}
        return {"expired": expired}

    def ended(self, delivery: str) -> bool:
        return self.ends_s[delivery] <= self.now_s


def consumer_of(server: Server) -> PullConsumer:
    return PullConsumer(
        cast("Any", server), "", token="t", timeout_s=1, batch_size=10, clock=lambda: server.now_s
    )


def iterate(
    server: Server, count: int, handle: Callable[[PullConsumer, Any], Awaitable[None]]
) -> list[str]:
    """Yield so many messages, each handled and acknowledged; the loop is left after the last."""

    async def run() -> list[str]:
        found: list[str] = []
        consumer = consumer_of(server)
        async with aclosing(cast("Any", aiter(consumer))) as messages:
            async for message in messages:
                assert not server.ended(message.ack_id)
                found.append(message.id)
                await handle(consumer, message)
                if len(found) == count:
                    break
        return found

    return asyncio.run(run())


def test_messages_that_wait_for_a_slow_consumer_are_extended() -> None:
    """GIVEN a consumer that takes a second per message THEN none is yielded after its end."""
    server = Server(100)

    async def handle(consumer: PullConsumer, message: Any) -> None:
        server.now_s += 1
        assert await consumer.ack(message) == 1

    assert iterate(server, 100, handle) == list(map(str, range(100)))
    extended = [len(ids) for action, ids in server.requests if action == "extend"]
    assert extended == [84, 68, 52, 36, 20, 4]


def test_messages_whose_delivery_has_ended_are_not_yielded() -> None:
    """GIVEN a message that takes longer than all may THEN the others are received again."""
    server = Server(5)

    async def handle(consumer: PullConsumer, message: Any) -> None:
        if message.id == "1":
            server.now_s += VISIBLE_S + 1
            server.waiting = ["7"]
            server.ends_s["7"] = 0

    assert iterate(server, 3, handle) == ["0", "1", "7"]


def test_a_rejected_message_may_end_others() -> None:
    """GIVEN a message that is rejected, and a later one of its key whose delivery ends with it THEN
    the later one is not yielded."""
    server = Server(5)

    async def handle(consumer: PullConsumer, message: Any) -> None:
        if message.id == "1":
            await consumer.nack(message)
            server.ends_s["3"] = 0

    assert iterate(server, 4, handle) == ["0", "1", "2", "4"]
    assert server.given_back == []


def test_messages_are_forgotten_while_the_server_is_unreachable() -> None:
    server = Server(3)

    async def handle(consumer: PullConsumer, message: Any) -> None:
        if message.id == "0":
            server.now_s += 20
            server.reachable = False
            asyncio.get_running_loop().call_later(0, recover)

    def recover() -> None:
        server.reachable = True
        server.waiting = ["1"]

    assert iterate(server, 2, handle) == ["0", "1"]


def test_a_loop_that_is_left_gives_back_what_it_has_not_yielded() -> None:
    server = Server(5)

    async def handle(consumer: PullConsumer, message: Any) -> None:
        await consumer.ack(message)

    assert iterate(server, 2, handle) == ["0", "1"]
    assert server.given_back == ["2", "3", "4"]


def test_a_consumer_that_is_closed_gives_back_what_loops_hold() -> None:
    server = Server(3)

    async def run() -> None:
        consumer = consumer_of(server)
        messages = aiter(consumer)
        assert (await anext(messages)).id == "0"
        await consumer.close()
        assert server.given_back == ["1", "2"]
        await cast("Any", messages).aclose()
        assert server.given_back == ["1", "2"]

    asyncio.run(run())
