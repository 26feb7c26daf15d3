"""What tests ask of a NATS server, each time over a connection of its own."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import nats
import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nats.aio.client import Client
    from nats.aio.msg import Msg

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Received:
    """A message as a consumer finds it."""

    subject: str
    id: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.payload)
        return found

    @property
    def msgpack(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.msgpack.decode(self.payload)
        return found


def connected(url: str, what: Callable[[Client], Awaitable[T]]) -> T:
    """The result of `what`, called with a connection that is closed afterwards."""

    async def run() -> T:
        client = await nats.connect(url.split(","))
        try:
            return await what(client)
        finally:
            await client.close()

    return asyncio.run(run())


def requested(
    url: str, requests: Sequence[tuple[str, bytes]], *, timeout_s: float, patience_s: float = LONG_S
) -> list[Msg]:
    """The replies to requests that are sent together, as soon as a service listens."""

    async def request(client: Client) -> list[Msg]:
        deadline = time.monotonic() + patience_s
        while True:
            sent = [client.request(subject, body, timeout=timeout_s) for subject, body in requests]
            try:
                return list(await asyncio.gather(*sent))
            except nats.errors.NoRespondersError:
                assert time.monotonic() < deadline, f"no service listens to {requests[0][0]}"
                await asyncio.sleep(0.1)

    return connected(url, request)


def received(url: str, stream: str, *, after: int = 0) -> list[Received]:
    """Everything a stream holds, in its order, but for so many messages at its beginning."""

    async def read(client: Client) -> list[Received]:
        js = client.jetstream(timeout=60)
        state = (await js.stream_info(stream)).state
        total = state.messages - after
        assert total >= 0, f"{stream} held {after} messages, and now only {state.messages}"
        if not total:
            return []
        settings = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=state.first_seq + after,
            mem_storage=True,
            # The server drops it after 5 s without a request, which a busy machine exceeds.
            inactive_threshold=300,
        )
        pull = await js.pull_subscribe("", stream=stream, config=settings)
        found: list[Received] = []
        while len(found) < total:
            for message in await pull.fetch(min(total - len(found), 5000), timeout=60):
                headers = message.headers or {}
                name = headers.get("Nats-Msg-Id", "")
                found.append(Received(message.subject, name, message.data, dict(headers)))
        return found

    return connected(url, read)


def stored(url: str, stream: str) -> int | None:
    """How many messages a stream has; None if there is no such stream."""

    async def ask(client: Client) -> int | None:
        try:
            return int((await client.jetstream(timeout=60).stream_info(stream)).state.messages)
        except nats.js.errors.NotFoundError:
            return None

    return connected(url, ask)


def purge(url: str, stream: str) -> None:
    """Remove every message of a stream."""
    connected(url, lambda client: client.jetstream(timeout=60).purge_stream(stream))
