"""A consumer of a pipeline with the sink `pull`: fetches messages over HTTP.

    async with tailrace.client.pull("http://localhost:9090", "orders", token="...") as consumer:
        async for message in consumer:
            ...
            await consumer.ack(message)

It needs the extra `http`. Several consumers of a pipeline share its messages.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from tailrace.backoff import Backoff
from tailrace.errors import SinkError, SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterable

    import httpcore

_WAIT_S = 30.0
_MOST = 1000
_OK, _BAD_REQUEST, _SERVER_ERROR = 200, 400, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledMessage:
    """A message that was received and must be acknowledged."""

    ack_id: str
    id: str
    """Names the change: the same when the message is delivered again."""
    destination: str
    key: bytes | None
    position: str
    committed_at: str
    deliveries: int
    """How often the message was delivered, this time included."""
    data: Any
    """The payload: what its JSON contains, or bytes in another encoding."""
    headers: dict[str, str] = field(default_factory=dict)


Messages = PulledMessage | list[PulledMessage]


@dataclass(slots=True, kw_only=True, eq=False)
class _Batch:
    """Messages of one answer that iterating has not yielded yet."""

    unread: deque[PulledMessage]
    visible_s: float
    """For how long no other consumer receives them."""
    since_s: float

    @property
    def ids(self) -> list[str]:
        return [message.ack_id for message in self.unread]


class PullConsumer:
    """Receives messages of one pipeline. Calls may run at the same time.

    Iterating waits for messages, and continues after the server was unreachable. It receives many
    at a time, and asks for more time for those that wait: a message that it yields has at least
    half of its time left. What is not yielded in the end goes back to the server. A message that is
    not acknowledged in time is delivered again.
    """

    def __init__(
        self,
        pool: httpcore.AsyncConnectionPool,
        url: str,
        *,
        token: str,
        timeout_s: float,
        batch_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._url = url
        self._clock = clock
        self._batches: list[_Batch] = []
        self._giving_back = asyncio.Lock()
        self._headers: list[tuple[bytes | str, bytes | str]] = [
            ("Authorization", f"Bearer {token}"),
            ("Content-Type", "application/json"),
        ]
        self._timeout_s = timeout_s
        self._batch_size = batch_size

    async def receive(
        self,
        batch_size: int | None = None,
        *,
        wait_s: float = _WAIT_S,
        visibility_s: float | None = None,
    ) -> list[PulledMessage]:
        """At most `batch_size` messages; waits for the first one, up to 300 seconds."""
        found = await self._receive(batch_size, wait_s=wait_s, visibility_s=visibility_s)
        return list(found.unread)

    async def _receive(
        self, batch_size: int | None, *, wait_s: float, visibility_s: float | None = None
    ) -> _Batch:
        asked: dict[str, Any] = {
            "batch_size": batch_size or self._batch_size,
            "wait_ms": int(wait_s * 1000),
        }
        if visibility_s is not None:
            asked["visibility_ms"] = int(visibility_s * 1000)
        # The server counts from its answer at the earliest.
        began_s = self._clock()
        answer = await self._post("receive", asked, wait_s=wait_s)
        return _Batch(
            unread=deque(_message(each) for each in answer["messages"]),
            visible_s=answer["visible_ms"] / 1000,
            since_s=began_s,
        )

    async def ack(self, messages: Messages) -> int:
        """Acknowledge messages: they are not delivered again. Returns how many were in time."""
        return await self._count("ack", messages)

    async def nack(self, messages: Messages, *, delay_s: float = 0.0) -> int:
        """Have messages delivered again, after a delay. Returns how many were in time."""
        for batch in self._batches:
            # Deliveries of later messages of the same keys end with them.
            batch.since_s = -math.inf
        return await self._count("nack", messages, delay_ms=int(delay_s * 1000))

    async def extend(self, messages: Messages, *, visibility_s: float) -> int:
        """Keep messages for so many seconds from now on. Returns how many were in time."""
        return await self._count("extend", messages, visibility_ms=int(visibility_s * 1000))

    async def __aiter__(self) -> AsyncIterator[PulledMessage]:
        backoff = Backoff(first_s=0.1, max_s=10.0)
        while True:
            try:
                batch = await self._receive(None, wait_s=_WAIT_S)
            except SinkUnreachableError:
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            self._batches.append(batch)
            try:
                while (message := await self._next(batch)) is not None:
                    yield message
            finally:
                await self._give_back(batch)
                self._batches.remove(batch)

    async def _next(self, batch: _Batch) -> PulledMessage | None:
        """The next message whose delivery has not ended; None if there is none."""
        if batch.unread and self._clock() - batch.since_s > batch.visible_s / 2:
            await self._keep(batch)
        return batch.unread.popleft() if batch.unread else None

    async def _keep(self, batch: _Batch) -> None:
        """Extend the deliveries of a batch, and forget those that have ended."""
        began_s, visible_ms = self._clock(), int(batch.visible_s * 1000)
        try:
            ended = await self._ended("extend", batch.ids, visibility_ms=visible_ms)
        except SinkUnreachableError:
            # They may have ended. If not, the server delivers them again a little later.
            batch.unread.clear()
            return
        batch.unread = deque(each for each in batch.unread if each.ack_id not in ended)
        batch.since_s = began_s

    async def _give_back(self, batch: _Batch) -> None:
        """Let other consumers have what was not yielded, without a delivery that counts."""
        async with self._giving_back:
            ids = batch.ids
            batch.unread.clear()
            if ids:
                with contextlib.suppress(SinkError):
                    await self._ended("nack", ids, counts=False)

    async def close(self) -> None:
        """Give back what iterating has not yielded."""
        for batch in list(self._batches):
            await self._give_back(batch)

    async def _count(self, action: str, messages: Messages, **more: int) -> int:
        """Send a request about messages. Returns for how many it was in time."""
        parts = list(_parts(messages))
        return sum([len(part) - len(await self._ended(action, part, **more)) for part in parts])

    async def _ended(self, action: str, ids: list[str], **more: int) -> set[str]:
        """Send a request about deliveries. Returns those that had ended before."""
        answer = await self._post(action, {"ack_ids": ids, **more})
        return set(answer["expired"])

    async def _post(self, action: str, body: dict[str, Any], *, wait_s: float = 0.0) -> Any:
        import httpcore  # noqa: PLC0415 - an extra

        url = f"{self._url}/{action}"
        limits = dict.fromkeys(("connect", "write", "pool"), self._timeout_s)
        limits["read"] = self._timeout_s + wait_s
        try:
            answer = await self._pool.request(
                "POST",
                url,
                headers=self._headers,
                content=orjson.dumps(body),
                extensions={"timeout": limits},
            )
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            raise SinkUnreachableError(
                f"{url}: {type(error).__name__} {error}".strip(),
                hint="Check the address, and that `tailrace run` is running there.",
            ) from error
        if answer.status != _OK:
            raise _error(url, answer.status, answer.content)
        return orjson.loads(answer.content)


@contextlib.asynccontextmanager
async def pull(
    url: str,
    pipeline: str,
    *,
    token: str,
    batch_size: int = 100,
    timeout_s: float = 30.0,
    connections: int = 10,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[PullConsumer]:
    """A consumer of a pipeline, connected until the block ends.

    `url` is that of the HTTP endpoints. Iterating receives `batch_size` messages at a time.
    """
    try:
        import httpcore  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise SinkRefusedError(
            "the consumer needs httpcore, which is not installed",
            hint="pip install 'tailrace[http]'",
        ) from error
    async with httpcore.AsyncConnectionPool(
        ssl_context=tls, max_connections=connections, keepalive_expiry=4.0
    ) as pool:
        consumer = PullConsumer(
            pool,
            f"{url.rstrip('/')}/v1/pull/{pipeline}",
            token=token,
            timeout_s=timeout_s,
            batch_size=batch_size,
        )
        try:
            yield consumer
        finally:
            # A loop that was left gives back in a task, which the pool would interrupt.
            await consumer.close()


def _parts(messages: Messages) -> Iterable[list[str]]:
    """The ids of messages, as many at a time as a request may have."""
    chosen = messages if isinstance(messages, list) else [messages]
    ids = [message.ack_id for message in chosen]
    return (ids[first : first + _MOST] for first in range(0, len(ids), _MOST))


def _message(fields: dict[str, Any]) -> PulledMessage:
    text = fields.pop("key", None)
    key = None if text is None else text.encode()
    if "key_base64" in fields:
        key = base64.b64decode(fields.pop("key_base64"))
    data = fields.pop("data", None)
    if "data_base64" in fields:
        data = base64.b64decode(fields.pop("data_base64"))
    return PulledMessage(**fields, key=key, data=data)


def _error(url: str, status: int, content: bytes) -> SinkError:
    text = f"{url} answers {status}: {content[:500].decode('utf-8', 'replace').strip()}"
    if _BAD_REQUEST <= status < _SERVER_ERROR:
        return SinkRefusedError(text, hint="Check the name of the pipeline, and the token.")
    return SinkUnreachableError(text)
