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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from tailrace.backoff import Backoff
from tailrace.errors import SinkError, SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterable

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


class PullConsumer:
    """Receives messages of one pipeline. Calls may run at the same time.

    Iterating waits for messages, and continues after the server was unreachable. A message that is
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
    ) -> None:
        self._pool = pool
        self._url = url
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
        asked: dict[str, Any] = {
            "batch_size": batch_size or self._batch_size,
            "wait_ms": int(wait_s * 1000),
        }
        if visibility_s is not None:
            asked["visibility_ms"] = int(visibility_s * 1000)
        answer = await self._post("receive", asked, wait_s=wait_s)
        return [_message(each) for each in answer["messages"]]

    async def ack(self, messages: Messages) -> int:
        """Acknowledge messages: they are not delivered again. Returns how many were in time."""
        return sum([await self._ended("ack", part) for part in _parts(messages)])

    async def nack(self, messages: Messages, *, delay_s: float = 0.0) -> int:
        """Have messages delivered again, after a delay. Returns how many were in time."""
        delay_ms = int(delay_s * 1000)
        return sum(
            [await self._ended("nack", part, delay_ms=delay_ms) for part in _parts(messages)]
        )

    async def extend(self, messages: Messages, *, visibility_s: float) -> int:
        """Keep messages for so many seconds from now on. Returns how many were in time."""
        ms = int(visibility_s * 1000)
        return sum(
            [await self._ended("extend", part, visibility_ms=ms) for part in _parts(messages)]
        )

    async def __aiter__(self) -> AsyncIterator[PulledMessage]:
        backoff = Backoff(first_s=0.1, max_s=10.0)
        while True:
            try:
                found = await self.receive()
            except SinkUnreachableError:
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            for message in found:
                yield message

    async def _ended(self, action: str, ids: list[str], **more: int) -> int:
        answer = await self._post(action, {"ack_ids": ids, **more})
        return len(ids) - len(answer["expired"])

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
        yield PullConsumer(
            pool,
            f"{url.rstrip('/')}/v1/pull/{pipeline}",
            token=token,
            timeout_s=timeout_s,
            batch_size=batch_size,
        )


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
